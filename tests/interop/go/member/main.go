// One member of a consumer group with franz-go: the same program as tests/kits/groups/member.py, whose text says what is
// written to the journal. The argument is its options in JSON. SIGTERM lets it leave.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	pollFor      = 100 * time.Millisecond
	batchRecords = 200
	patience     = 25 * time.Second
)

type options struct {
	Journal   string   `json:"journal"`
	ClientID  string   `json:"client_id"`
	Address   string   `json:"address"`
	Group     string   `json:"group"`
	Topics    []string `json:"topics"`
	Pattern   string   `json:"pattern"`
	Instance  *string  `json:"instance"`
	SessionMs int      `json:"session_ms"`
	Protocol  string   `json:"protocol"`
}

type partition struct {
	topic string
	index int32
}

type journal struct {
	lock  sync.Mutex
	file  *os.File
	owned map[partition]bool
}

// now is the clock of time.monotonic() in Python: CLOCK_MONOTONIC, which all processes of the machine share.
func now() float64 {
	var found syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, 1, uintptr(unsafe.Pointer(&found)), 0)
	return float64(found.Sec) + float64(found.Nsec)/1e9
}

func (j *journal) write(event string, what map[string]any) {
	what["event"], what["time"] = event, now()
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	j.file.Write(append(line, '\n'))
}

func rows(partitions map[partition]bool) [][]any {
	found := [][]any{}
	for at := range partitions {
		found = append(found, []any{at.topic, at.index})
	}
	sort.Slice(found, func(i, k int) bool { return fmt.Sprint(found[i]) < fmt.Sprint(found[k]) })
	return found
}

func (j *journal) moved(topics map[string][]int32, isGained, isExpired bool) {
	j.lock.Lock()
	defer j.lock.Unlock()
	moved := map[partition]bool{}
	for topic, indexes := range topics {
		for _, index := range indexes {
			at := partition{topic, index}
			moved[at] = true
			if isGained {
				j.owned[at] = true
			} else {
				delete(j.owned, at)
			}
		}
	}
	gained, lost := rows(moved), [][]any{}
	if !isGained {
		gained, lost = lost, gained
	}
	j.write("owns", map[string]any{"owned": rows(j.owned), "gained": gained, "lost": lost, "expired": isExpired})
}

func (j *journal) told(event string, at partition, what map[string]any) {
	j.lock.Lock()
	defer j.lock.Unlock()
	what["at"] = []any{at.topic, at.index}
	j.write(event, what)
}

func (j *journal) refused(err error) {
	j.lock.Lock()
	defer j.lock.Unlock()
	j.write("refused", map[string]any{"error": err.Error()})
}

func main() {
	var given options
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		panic(err)
	}
	file, err := os.OpenFile(given.Journal, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		panic(err)
	}
	notes := &journal{file: file, owned: map[partition]bool{}}
	var stop atomic.Bool
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	go func() {
		<-asked
		stop.Store(true)
	}()
	client, err := kgo.NewClient(settings(given, notes)...)
	if err != nil {
		panic(err)
	}
	for !stop.Load() {
		step(client, notes)
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	notes.lock.Lock()
	notes.write("left", map[string]any{})
}

func settings(given options, notes *journal) []kgo.Opt {
	gained := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) { notes.moved(topics, true, false) }
	revoked := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) { notes.moved(topics, false, false) }
	lost := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) { notes.moved(topics, false, true) }
	found := []kgo.Opt{
		kgo.SeedBrokers(given.Address),
		kgo.ClientID(given.ClientID),
		kgo.ConsumerGroup(given.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), // records are processed and committed before their partition goes
		kgo.OnPartitionsAssigned(gained),
		kgo.OnPartitionsRevoked(revoked),
		kgo.OnPartitionsLost(lost),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelInfo, nil)),
		kgo.FetchMaxWait(pollFor),
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.MetadataMaxAge(500 * time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}
	if given.Pattern != "" {
		found = append(found, kgo.ConsumeRegex(), kgo.ConsumeTopics(given.Pattern))
	} else {
		found = append(found, kgo.ConsumeTopics(given.Topics...))
	}
	if given.Instance != nil {
		found = append(found, kgo.InstanceID(*given.Instance))
	}
	if given.Protocol == "consumer" {
		return append(found, kgo.ServerSideBalancer())
	}
	session := time.Duration(given.SessionMs) * time.Millisecond
	return append(found, kgo.SessionTimeout(session), kgo.HeartbeatInterval(300*time.Millisecond))
}

// step reads, processes and commits once.
func step(client *kgo.Client, notes *journal) {
	ctx, cancel := context.WithTimeout(context.Background(), pollFor)
	fetches := client.PollRecords(ctx, batchRecords)
	cancel()
	batches := map[partition][]*kgo.Record{}
	fetches.EachRecord(func(r *kgo.Record) {
		at := partition{r.Topic, r.Partition}
		batches[at] = append(batches[at], r)
	})
	var last []*kgo.Record
	for at, batch := range batches {
		for place, r := range batch {
			number, err := strconv.ParseInt(string(r.Value), 10, 64)
			if err != nil || number != r.Offset || r.Offset != batch[0].Offset+int64(place) {
				panic(fmt.Sprintf("%v: %s is at offset %d, place %d", at, r.Value, r.Offset, place))
			}
		}
		end := batch[len(batch)-1]
		notes.told("processed", at, map[string]any{"first": batch[0].Offset, "last": end.Offset})
		last = append(last, end)
	}
	if len(last) == 0 {
		return
	}
	commit, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := client.CommitRecords(commit, last...); err != nil {
		notes.refused(err)
		return
	}
	for _, r := range last {
		notes.told("committed", partition{r.Topic, r.Partition}, map[string]any{"offset": r.Offset + 1})
	}
}
