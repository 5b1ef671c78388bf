// franz-go, driven from outside: one JSON object a line in, one a line out (see the Java program of the same kind).
//
// A handle names a producer, or, when it was opened with a group, a GroupTransactSession, which is how franz-go reads,
// transforms and writes: it commits the offsets by itself when the transaction ends, and goes back to them on an abort.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const patience = 25 * time.Second

type ask struct {
	Op         string    `json:"op"`
	Handle     string    `json:"handle"`
	ID         string    `json:"id"`
	TimeoutMs  int       `json:"timeout_ms"`
	Group      *string   `json:"group"`
	Topic      string    `json:"topic"`
	Limit      int       `json:"limit"`
	SessionMs  int       `json:"session_ms"`
	Protocol   string    `json:"protocol"`
	WaitMs     int       `json:"wait_ms"`
	Rows       [][]any   `json:"rows"`
	Positions  [][]int64 `json:"positions"`
	Partitions int32     `json:"partitions"`
	Committed  bool      `json:"committed"`
}

type answer struct {
	Error     []string `json:"error,omitempty"`
	Text      string   `json:"text,omitempty"`
	Committed *bool    `json:"committed,omitempty"`
	Rows      [][]any  `json:"rows,omitempty"`
}

type handle struct {
	opened  ask
	client  *kgo.Client
	session *kgo.GroupTransactSession

	lock   sync.Mutex
	failed error
}

type program struct {
	servers string
	handles map[string]*handle
}

func main() {
	clients := &program{servers: os.Args[1], handles: map[string]*handle{}}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var question ask
		var reply answer
		if err := json.Unmarshal(line, &question); err != nil {
			panic(err)
		}
		if err := clients.run(question, &reply); err != nil {
			reply.Error, reply.Text = names(err), err.Error()
		}
		if err := out.Encode(reply); err != nil {
			return
		}
	}
}

// names of the protocol errors in a chain, or of nothing but the text.
func names(err error) []string {
	var found []string
	for _, known := range []*kerr.Error{
		kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidTxnState, kerr.InvalidProducerIDMapping,
		kerr.TransactionAbortable, kerr.UnknownProducerID, kerr.ConcurrentTransactions,
	} {
		if errors.Is(err, known) {
			found = append(found, known.Message)
		}
	}
	if found == nil {
		found = []string{fmt.Sprintf("%T", err)}
	}
	return found
}

func (p *program) run(q ask, reply *answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if q.Op == "open" {
		return p.open(ctx, q)
	}
	if q.Op == "read" {
		return p.read(ctx, q, reply)
	}
	h := p.handles[q.Handle]
	if h == nil {
		return fmt.Errorf("no handle %q", q.Handle)
	}
	switch q.Op {
	case "reopen":
		h.close()
		return p.open(ctx, h.opened)
	case "begin":
		h.failed = nil
		return h.client.BeginTransaction()
	case "send":
		h.send(q)
		return nil
	case "flush":
		if err := h.client.Flush(ctx); err != nil {
			return err
		}
		h.lock.Lock()
		defer h.lock.Unlock()
		return h.failed
	case "offsets":
		return h.offsets(ctx, q)
	case "commit", "abort":
		return h.end(ctx, q.Op == "commit", reply)
	case "poll":
		return h.poll(ctx, q, reply)
	case "rewind": // the session has done it
		return nil
	case "close":
		h.close()
		delete(p.handles, q.Handle)
		return nil
	}
	return fmt.Errorf("no operation %q", q.Op)
}

func (p *program) open(ctx context.Context, q ask) error {
	h := &handle{opened: q}
	options := append(secured(),
		kgo.SeedBrokers(p.servers),
		kgo.TransactionalID(q.ID),
		kgo.TransactionTimeout(time.Duration(q.TimeoutMs)*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(2*time.Millisecond),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
		kgo.RetryTimeout(patience),
		kgo.RecordDeliveryTimeout(patience),
		kgo.RequestTimeoutOverhead(5*time.Second),
	)
	var err error
	if q.Group != nil && q.SessionMs > 0 {
		options = append(options,
			kgo.ConsumerGroup(*q.Group),
			kgo.ConsumeTopics(q.Topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.RequireStableFetchOffsets(),
			kgo.SessionTimeout(time.Duration(q.SessionMs)*time.Millisecond),
			kgo.HeartbeatInterval(300*time.Millisecond),
			kgo.FetchMaxWait(100*time.Millisecond),
		)
		if q.Protocol == "consumer" {
			options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
		}
		if h.session, err = kgo.NewGroupTransactSession(options...); err == nil {
			h.client = h.session.Client()
		}
	} else {
		h.client, err = kgo.NewClient(options...)
	}
	if err != nil {
		return err
	}
	p.handles[q.Handle] = h
	if _, _, err = h.client.ProducerID(ctx); err != nil { // InitProducerId, which fences
		h.close()
	}
	return err
}

func (h *handle) send(q ask) {
	for _, row := range q.Rows {
		record := &kgo.Record{Topic: q.Topic, Partition: int32(row[0].(float64)), Value: []byte(row[1].(string))}
		h.client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			h.lock.Lock()
			defer h.lock.Unlock()
			if err != nil && h.failed == nil {
				h.failed = err
			}
		})
	}
}

// offsets of a group without members; a session commits those of its own group when it ends the transaction.
func (h *handle) offsets(ctx context.Context, q ask) error {
	if h.session != nil {
		return nil
	}
	id, epoch, err := h.client.ProducerID(ctx)
	if err != nil {
		return err
	}
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.Group, commit.ProducerID, commit.ProducerEpoch = h.opened.ID, *q.Group, id, epoch
	topic := kmsg.NewTxnOffsetCommitRequestTopic()
	topic.Topic = q.Topic
	for _, position := range q.Positions {
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Partition, partition.Offset = int32(position[0]), position[1]
		topic.Partitions = append(topic.Partitions, partition)
	}
	commit.Topics = append(commit.Topics, topic)
	for {
		response, err := commit.RequestWith(ctx, h.client)
		if err == nil {
			err = kerr.ErrorForCode(response.Topics[0].Partitions[0].ErrorCode)
		}
		if !kerr.IsRetriable(err) || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (h *handle) end(ctx context.Context, commit bool, reply *answer) error {
	if h.session != nil {
		committed, err := h.session.End(ctx, kgo.TransactionEndTry(commit))
		reply.Committed = &committed
		return err
	}
	before := h.client.AbortBufferedRecords
	if commit {
		before = h.client.Flush
	}
	if err := before(ctx); err != nil {
		return err
	}
	return h.client.EndTransaction(ctx, kgo.TransactionEndTry(commit))
}

func (h *handle) poll(ctx context.Context, q ask, reply *answer) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.WaitMs)*time.Millisecond)
	defer cancel()
	h.session.PollRecords(ctx, q.Limit).EachRecord(func(r *kgo.Record) {
		reply.Rows = append(reply.Rows, []any{r.Partition, r.Offset, string(r.Value)})
	})
	return nil
}

func (h *handle) close() {
	done := make(chan struct{})
	go func() {
		if h.session != nil {
			h.session.Close()
		} else {
			h.client.Close()
		}
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
	}
}

func (p *program) read(ctx context.Context, q ask, reply *answer) error {
	reply.Rows = [][]any{}
	level := kgo.ReadUncommitted()
	isolation := int8(0)
	if q.Committed {
		level, isolation = kgo.ReadCommitted(), 1
	}
	from := map[int32]kgo.Offset{}
	for index := int32(0); index < q.Partitions; index++ {
		from[index] = kgo.NewOffset().AtStart()
	}
	client, err := kgo.NewClient(append(secured(),
		kgo.SeedBrokers(p.servers),
		kgo.FetchIsolationLevel(level),
		kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{q.Topic: from}),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	ends, err := ends(ctx, client, q, isolation)
	if err != nil {
		return err
	}
	position := map[int32]int64{}
	for !reached(position, ends) {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("the end %v was not reached: %w in %s", ends, ctx.Err(), strings.TrimSpace(q.Topic))
		}
		fetches.EachRecord(func(r *kgo.Record) {
			position[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				reply.Rows = append(reply.Rows, []any{r.Partition, r.Offset, string(r.Value)})
			}
		})
	}
	return nil
}

// ends of the partitions by isolation level. Control records are kept while reading, so that the last one is seen.
func ends(ctx context.Context, client *kgo.Client, q ask, isolation int8) (map[int32]int64, error) {
	list := kmsg.NewPtrListOffsetsRequest()
	list.IsolationLevel = isolation
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = q.Topic
	for index := int32(0); index < q.Partitions; index++ {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = index, -1
		topic.Partitions = append(topic.Partitions, partition)
	}
	list.Topics = append(list.Topics, topic)
	found := map[int32]int64{}
	for _, shard := range client.RequestSharded(ctx, list) {
		if shard.Err != nil {
			return nil, shard.Err
		}
		for _, topic := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, partition := range topic.Partitions {
				if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
					return nil, err
				}
				found[partition.Partition] = partition.Offset
			}
		}
	}
	return found, nil
}

func reached(position, ends map[int32]int64) bool {
	for partition, end := range ends {
		if position[partition] < end {
			return false
		}
	}
	return true
}
