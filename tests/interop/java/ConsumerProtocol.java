// A consumer of the protocol of KIP-848 joins a group; what it is assigned, or what keeps it from that, is printed.

import java.time.Duration;
import java.util.List;
import java.util.Properties;

import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ConsumerProtocol {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", "modern");
        settings.put("group.protocol", "consumer");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(arguments[1]));
            long end = System.nanoTime() + 20_000_000_000L;
            while (System.nanoTime() < end) {
                consumer.poll(Duration.ofMillis(200));
                if (!consumer.assignment().isEmpty()) {
                    System.out.println("assigned " + consumer.assignment().size());
                    return;
                }
            }
            System.out.println("nothing assigned");
        } catch (RuntimeException error) {
            System.out.println(error.getClass().getSimpleName() + ": " + error.getMessage());
        }
    }
}
