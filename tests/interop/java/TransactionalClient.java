// Apache Kafka's own producer and consumer, driven from outside: one JSON object a line in, one a line out.
//
// A handle names a producer and, when it was opened with a group, the consumer that belongs to it. An operation that
// the client refuses answers {"error": [class, class of the cause, ...], "text": message}.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionalClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration PATIENCE = Duration.ofSeconds(25);

    private static class Handle {
        String id;
        int timeoutMs;
        KafkaProducer<String, String> producer;
        KafkaConsumer<String, String> consumer;
        List<Future<?>> sent = new ArrayList<>();
    }

    private final String servers;
    private final Map<String, Handle> handles = new HashMap<>();

    private TransactionalClient(String servers) {
        this.servers = servers;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // answers only on standard output, whatever a library prints
        TransactionalClient clients = new TransactionalClient(arguments[0]);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                clients.run(JSON.readTree(line), answer);
            } catch (Throwable error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                answer.put("text", String.valueOf(cause.getMessage()));
                ArrayNode names = answer.putArray("error");
                for (; cause != null; cause = cause.getCause()) {
                    names.add(cause.getClass().getSimpleName());
                }
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private void run(JsonNode ask, ObjectNode answer) throws Exception {
        String name = ask.path("handle").asText();
        Handle handle = handles.computeIfAbsent(name, key -> new Handle());
        switch (ask.get("op").asText()) {
            case "open" -> open(handle, ask);
            case "reopen" -> reopen(handle);
            case "begin" -> handle.producer.beginTransaction();
            case "send" -> send(handle, ask);
            case "flush" -> flush(handle);
            case "offsets" -> offsets(handle, ask);
            case "commit" -> handle.producer.commitTransaction();
            case "abort" -> {
                handle.sent.clear();
                handle.producer.abortTransaction();
            }
            case "poll" -> poll(handle, ask, answer);
            case "rewind" -> rewind(handle, ask);
            case "read" -> read(ask, answer);
            case "close" -> {
                close(handle);
                handles.remove(name);
            }
            default -> throw new IllegalArgumentException("no operation " + ask.get("op"));
        }
    }

    private void open(Handle handle, JsonNode ask) {
        handle.id = ask.get("id").asText();
        handle.timeoutMs = ask.get("timeout_ms").asInt();
        newProducer(handle);
        if (ask.hasNonNull("group")) {
            Properties config = consumerConfig(true);
            config.put("group.id", ask.get("group").asText());
            config.put("max.poll.records", ask.get("limit").asInt());
            String protocol = ask.path("protocol").asText("classic");
            config.put("group.protocol", protocol);
            if (protocol.equals("classic")) { // else these are the broker's
                config.put("session.timeout.ms", ask.get("session_ms").asInt());
                config.put("heartbeat.interval.ms", 300);
            }
            handle.consumer = new KafkaConsumer<>(config);
            handle.consumer.subscribe(List.of(ask.get("topic").asText()));
        }
    }

    private void newProducer(Handle handle) {
        Properties config = secured();
        config.put("bootstrap.servers", servers);
        config.put("key.serializer", StringSerializer.class.getName());
        config.put("value.serializer", StringSerializer.class.getName());
        config.put("transactional.id", handle.id);
        config.put("transaction.timeout.ms", handle.timeoutMs);
        config.put("max.block.ms", (int) PATIENCE.toMillis());
        config.put("delivery.timeout.ms", (int) PATIENCE.toMillis());
        config.put("request.timeout.ms", 10_000);
        config.put("linger.ms", 2);
        config.put("retry.backoff.ms", 50);
        config.put("reconnect.backoff.ms", 50);
        config.put("reconnect.backoff.max.ms", 300);
        if (handle.producer != null) {
            handle.producer.close(Duration.ZERO);
        }
        handle.producer = new KafkaProducer<>(config);
        handle.sent.clear();
        handle.producer.initTransactions();
    }

    /** Those of a secure connection: the file of properties that CLIENT_PROPERTIES names. */
    private Properties secured() {
        Properties config = new Properties();
        String file = System.getenv("CLIENT_PROPERTIES");
        if (file != null) {
            try (FileReader reader = new FileReader(file)) {
                config.load(reader);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
        return config;
    }

    private Properties consumerConfig(boolean committed) {
        Properties config = secured();
        config.put("bootstrap.servers", servers);
        config.put("key.deserializer", StringDeserializer.class.getName());
        config.put("value.deserializer", StringDeserializer.class.getName());
        config.put("isolation.level", committed ? "read_committed" : "read_uncommitted");
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", "false");
        config.put("default.api.timeout.ms", (int) PATIENCE.toMillis());
        config.put("retry.backoff.ms", 50);
        config.put("reconnect.backoff.ms", 50);
        config.put("reconnect.backoff.max.ms", 300);
        config.put("fetch.max.wait.ms", 100);
        return config;
    }

    private void reopen(Handle handle) {
        newProducer(handle);
        if (handle.consumer != null) {
            rewindTo(handle, handle.consumer.committed(handle.consumer.assignment()));
        }
    }

    private void send(Handle handle, JsonNode ask) {
        String topic = ask.get("topic").asText();
        for (JsonNode row : ask.get("rows")) {
            handle.sent.add(handle.producer.send(new ProducerRecord<>(topic, row.get(0).asInt(), null, row.get(1).asText())));
        }
    }

    private void flush(Handle handle) throws Exception {
        handle.producer.flush();
        List<Future<?>> sent = new ArrayList<>(handle.sent);
        handle.sent.clear();
        for (Future<?> future : sent) {
            future.get(PATIENCE.toMillis(), TimeUnit.MILLISECONDS);
        }
    }

    @SuppressWarnings("removal") // a group without members can be named in no other way
    private void offsets(Handle handle, JsonNode ask) {
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        positionsOf(ask).forEach((partition, offset) -> positions.put(partition, new OffsetAndMetadata(offset)));
        ConsumerGroupMetadata group = handle.consumer != null
            ? handle.consumer.groupMetadata() : new ConsumerGroupMetadata(ask.get("group").asText());
        handle.producer.sendOffsetsToTransaction(positions, group);
    }

    private Map<TopicPartition, Long> positionsOf(JsonNode ask) {
        Map<TopicPartition, Long> positions = new HashMap<>();
        String topic = ask.get("topic").asText();
        for (JsonNode row : ask.get("positions")) {
            positions.put(new TopicPartition(topic, row.get(0).asInt()), row.get(1).asLong());
        }
        return positions;
    }

    private void poll(Handle handle, JsonNode ask, ObjectNode answer) {
        ArrayNode rows = answer.putArray("rows");
        handle.consumer.poll(Duration.ofMillis(ask.get("wait_ms").asInt())).forEach(record -> add(rows, record));
    }

    private void rewind(Handle handle, JsonNode ask) {
        positionsOf(ask).forEach((partition, offset) -> {
            if (handle.consumer.assignment().contains(partition)) {
                handle.consumer.seek(partition, offset);
            }
        });
    }

    private void rewindTo(Handle handle, Map<TopicPartition, OffsetAndMetadata> committed) {
        for (TopicPartition partition : handle.consumer.assignment()) {
            OffsetAndMetadata found = committed.get(partition);
            handle.consumer.seek(partition, found == null ? 0 : found.offset());
        }
    }

    private void read(JsonNode ask, ObjectNode answer) {
        ArrayNode rows = answer.putArray("rows");
        List<TopicPartition> partitions = new ArrayList<>();
        for (int index = 0; index < ask.get("partitions").asInt(); index++) {
            partitions.add(new TopicPartition(ask.get("topic").asText(), index));
        }
        try (KafkaConsumer<String, String> reader = new KafkaConsumer<>(consumerConfig(ask.get("committed").asBoolean()))) {
            reader.assign(partitions);
            reader.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = reader.endOffsets(Set.copyOf(partitions));
            long deadline = System.nanoTime() + PATIENCE.toNanos();
            while (!ends.entrySet().stream().allMatch(end -> reader.position(end.getKey()) >= end.getValue())) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("the end " + ends + " was not reached");
                }
                reader.poll(Duration.ofMillis(100)).forEach(record -> add(rows, record));
            }
        }
    }

    private static void add(ArrayNode rows, ConsumerRecord<String, String> record) {
        rows.addArray().add(record.partition()).add(record.offset()).add(record.value());
    }

    private static void close(Handle handle) {
        if (handle.consumer != null) {
            handle.consumer.close(org.apache.kafka.clients.consumer.CloseOptions.timeout(Duration.ofSeconds(2)));
        }
        if (handle.producer != null) {
            handle.producer.close(Duration.ZERO);
        }
    }
}
