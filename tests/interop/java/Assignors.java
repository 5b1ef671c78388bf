// Asks Apache Kafka's own assignors. Standard input is a list of cases in JSON:
// {"assignor", "partitions": {topic: count}, "members": [{"id", "instance", "topics", "owned": [[topic, partition]],
// "generation"}]}. Prints one object per case: the partitions of each member.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.TopicPartition;

public class Assignors {
    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        for (JsonNode one : mapper.readTree(System.in)) {
            Map<String, List<List<Object>>> found = new TreeMap<>();
            assignor(one.get("assignor").asText()).assign(partitions(one), subscriptions(one)).forEach((id, owned) -> {
                List<List<Object>> rows = new ArrayList<>();
                owned.forEach(tp -> rows.add(List.of(tp.topic(), tp.partition())));
                found.put(id, rows);
            });
            System.out.println(mapper.writeValueAsString(found));
        }
    }

    // A new one each time: a sticky assignor remembers the highest generation it has seen.
    private static AbstractPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "cooperative-sticky": return new CooperativeStickyAssignor();
            default: throw new IllegalArgumentException(name);
        }
    }

    private static Map<String, Integer> partitions(JsonNode one) {
        Map<String, Integer> counts = new HashMap<>();
        one.get("partitions").fields().forEachRemaining(row -> counts.put(row.getKey(), row.getValue().asInt()));
        return counts;
    }

    private static Map<String, Subscription> subscriptions(JsonNode one) {
        Map<String, Subscription> rows = new HashMap<>();
        for (JsonNode member : one.get("members")) {
            List<String> topics = new ArrayList<>();
            member.get("topics").forEach(topic -> topics.add(topic.asText()));
            List<TopicPartition> owned = new ArrayList<>();
            member.get("owned").forEach(row -> owned.add(new TopicPartition(row.get(0).asText(), row.get(1).asInt())));
            int generation = member.get("generation").asInt();
            Subscription row = new Subscription(topics, null, owned, generation, Optional.empty());
            if (!member.get("instance").isNull())
                row.setGroupInstanceId(Optional.of(member.get("instance").asText()));
            rows.put(member.get("id").asText(), row);
        }
        return rows;
    }
}
