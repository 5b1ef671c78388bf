// One member of a consumer group with Apache Kafka's own client: the same program as tests/kits/groups/member.py, whose
// text says what is written to the journal. The argument is its options in JSON. SIGTERM lets it leave.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class GroupMember {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final Set<TopicPartition> OWNED = new TreeSet<>(GroupMember::compare);
    private static volatile boolean stop = false;
    private static FileWriter journal;

    public static void main(String[] args) throws Exception {
        JsonNode options = MAPPER.readTree(args[0]);
        journal = new FileWriter(options.get("journal").asText(), StandardCharsets.UTF_8, true);
        CountDownLatch left = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stop = true;
            try {
                left.await();
            } catch (InterruptedException ignored) {
                // the test kills it
            }
            Runtime.getRuntime().halt(0); // not 143: it has left as it was asked to
        }));
        List<String> topics = new ArrayList<>();
        options.get("topics").forEach(topic -> topics.add(topic.asText()));
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties(options))) {
            subscribe(consumer, options, topics);
            while (!stop)
                step(consumer);
        }
        write("left", new LinkedHashMap<>());
        left.countDown();
    }

    private static void subscribe(KafkaConsumer<String, String> consumer, JsonNode options, List<String> topics) {
        String pattern = options.path("pattern").asText("");
        if (pattern.isEmpty())
            consumer.subscribe(topics, new Listener());
        else if (isModern(options))
            consumer.subscribe(new SubscriptionPattern(pattern), new Listener()); // the broker matches it
        else
            consumer.subscribe(Pattern.compile(pattern), new Listener());
    }

    private static boolean isModern(JsonNode options) {
        return options.get("protocol").asText().equals("consumer");
    }

    private static Properties properties(JsonNode options) {
        Properties found = new Properties();
        found.put("bootstrap.servers", options.get("address").asText());
        found.put("client.id", options.get("client_id").asText());
        found.put("group.id", options.get("group").asText());
        if (!options.get("instance").isNull())
            found.put("group.instance.id", options.get("instance").asText());
        found.put("auto.offset.reset", "earliest");
        found.put("enable.auto.commit", "false");
        found.put("group.protocol", options.get("protocol").asText());
        if (!isModern(options)) { // else these are the broker's
            found.put("session.timeout.ms", options.get("session_ms").asText());
            found.put("heartbeat.interval.ms", "300");
            String assignor = options.get("strategy").asText().equals("range") ? "Range" : "CooperativeSticky";
            found.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor + "Assignor");
        }
        found.put("metadata.max.age.ms", "500");
        found.put("reconnect.backoff.ms", "50");
        found.put("reconnect.backoff.max.ms", "300");
        found.put("fetch.max.wait.ms", "100");
        found.put("max.poll.records", "200");
        found.put("key.deserializer", StringDeserializer.class.getName());
        found.put("value.deserializer", StringDeserializer.class.getName());
        return found;
    }

    private static void step(KafkaConsumer<String, String> consumer) throws Exception {
        try {
            var records = consumer.poll(Duration.ofMillis(100));
            Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
            for (TopicPartition tp : records.partitions()) {
                List<ConsumerRecord<String, String>> rows = records.records(tp);
                for (ConsumerRecord<String, String> row : rows)
                    if (row.offset() != Long.parseLong(row.value()))
                        throw new IllegalStateException(tp + ": " + row.value() + " is at offset " + row.offset());
                long last = rows.get(rows.size() - 1).offset();
                Map<String, Object> what = at(tp);
                what.put("first", rows.get(0).offset());
                what.put("last", last);
                write("processed", what);
                next.put(tp, new OffsetAndMetadata(last + 1));
            }
            if (next.isEmpty())
                return;
            consumer.commitSync(next);
            for (Map.Entry<TopicPartition, OffsetAndMetadata> entry : next.entrySet()) {
                Map<String, Object> what = at(entry.getKey());
                what.put("offset", entry.getValue().offset());
                write("committed", what);
            }
        } catch (KafkaException error) {
            Map<String, Object> what = new LinkedHashMap<>();
            what.put("error", error.toString());
            write("refused", what);
        }
    }

    private static int compare(TopicPartition one, TopicPartition other) {
        int topics = one.topic().compareTo(other.topic());
        return topics != 0 ? topics : Integer.compare(one.partition(), other.partition());
    }

    private static Map<String, Object> at(TopicPartition tp) {
        Map<String, Object> what = new LinkedHashMap<>();
        what.put("at", List.of(tp.topic(), tp.partition()));
        return what;
    }

    private static List<List<Object>> rows(Collection<TopicPartition> partitions) {
        List<List<Object>> found = new ArrayList<>();
        partitions.forEach(tp -> found.add(List.of(tp.topic(), tp.partition())));
        return found;
    }

    private static void owns(
            Collection<TopicPartition> gained, Collection<TopicPartition> lost, boolean expired) {
        Map<String, Object> what = new LinkedHashMap<>();
        what.put("owned", rows(OWNED));
        what.put("gained", rows(gained));
        what.put("lost", rows(lost));
        what.put("expired", expired);
        try {
            write("owns", what);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    // System.nanoTime is the clock of time.monotonic() on Linux.
    private static void write(String event, Map<String, Object> what) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("time", System.nanoTime() / 1e9);
        line.putAll(what);
        journal.write(MAPPER.writeValueAsString(line) + "\n");
        journal.flush();
    }

    private static class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            OWNED.addAll(partitions);
            owns(partitions, List.of(), false);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            OWNED.removeAll(partitions);
            owns(List.of(), partitions, false);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            OWNED.removeAll(partitions);
            owns(List.of(), partitions, true);
        }
    }
}
