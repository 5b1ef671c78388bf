// Asks Apache Kafka's server-side assignors and its metadata hash. Standard input is {"groups": [...], "topics": [...]} in JSON.
// A group: {"assignor", "homogeneous", "partitions": {topic id: count}, "members": [{"id", "instance", "topics": [topic id],
// "target": [[topic id, [partition]]]}]}; members and partitions go into Java's tables in this order. Prints for each group
// {"found": {member: [[topic id, [partition]]]}, "members": [id], "subscribed": [topic id], "targets": {member: [...]}}, where
// the last three are in the order in which the assignor read them. A topic: {"id", "name", "racks": [[rack of a replica]]}.
// Prints one object {"topics": [hash], "group": hash of all}.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RegisterBrokerRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.common.runtime.KRaftCoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.Utils;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.PartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;

public class ServerAssignors {
    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        JsonNode asked = mapper.readTree(System.in);
        for (JsonNode one : asked.get("groups"))
            System.out.println(mapper.writeValueAsString(assigned(one)));
        System.out.println(mapper.writeValueAsString(hashes(asked.get("topics"))));
    }

    private static Map<String, Object> assigned(JsonNode one) {
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new HashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        for (JsonNode member : one.get("members")) {
            String id = member.get("id").asText();
            Map<Uuid, Set<Integer>> target = target(member.get("target"));
            target.forEach((topic, numbers) -> numbers.forEach(
                number -> owners.computeIfAbsent(topic, t -> new HashMap<>()).put(number, id)));
            members.put(id, new MemberSubscriptionAndAssignmentImpl(
                Optional.empty(),
                Optional.ofNullable(member.get("instance").textValue()),
                topics(member),
                new Assignment(target)));
        }
        SubscriptionType type =
            one.get("homogeneous").asBoolean() ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        GroupSpecImpl group = new GroupSpecImpl(Collections.unmodifiableMap(members), type, owners);
        Map<String, Object> answer = new LinkedHashMap<>();
        // Before the assignor is asked: it may change what it is given.
        answer.put("members", new ArrayList<>(group.memberIds()));
        Set<Uuid> first = group.memberSubscription(group.memberIds().iterator().next()).subscribedTopicIds();
        answer.put("subscribed", new HashSet<>(first).stream().map(ServerAssignors::text).toList());
        Map<String, Object> targets = new HashMap<>();
        members.forEach((id, member) -> targets.put(id, rows(member.partitions())));
        answer.put("targets", targets);
        Map<String, MemberAssignment> found =
            assignor(one.get("assignor").asText()).assign(group, describer(one.get("partitions"))).members();
        Map<String, Object> assignments = new HashMap<>();
        found.forEach((id, assignment) -> assignments.put(id, rows(assignment.partitions())));
        answer.put("found", assignments);
        return answer;
    }

    private static PartitionAssignor assignor(String name) {
        return name.equals("range") ? new RangeAssignor() : new UniformAssignor();
    }

    private static Set<Uuid> topics(JsonNode member) {
        Set<Uuid> topics = new HashSet<>();
        member.get("topics").forEach(topic -> topics.add(id(topic.asText())));
        return topics;
    }

    // As Assignment.fromRecord makes it of a record.
    private static Map<Uuid, Set<Integer>> target(JsonNode rows) {
        List<JsonNode> list = new ArrayList<>();
        rows.forEach(list::add);
        return list.stream().collect(Collectors.toMap(row -> id(row.get(0).asText()), row -> {
            List<Integer> numbers = new ArrayList<>();
            row.get(1).forEach(number -> numbers.add(number.asInt()));
            return new HashSet<>(numbers);
        }));
    }

    private static SubscribedTopicDescriber describer(JsonNode partitions) {
        return new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topic) {
                JsonNode count = partitions.get(text(topic));
                return count == null ? -1 : count.asInt();
            }

            @Override
            public Set<String> racksForPartition(Uuid topic, int partition) {
                return Set.of();
            }
        };
    }

    private static List<List<Object>> rows(Map<Uuid, Set<Integer>> target) {
        List<List<Object>> rows = new ArrayList<>();
        target.forEach((topic, numbers) -> rows.add(List.of(text(topic), new ArrayList<>(numbers))));
        return rows;
    }

    private static Map<String, Object> hashes(JsonNode topics) {
        CoordinatorMetadataImage image = new KRaftCoordinatorMetadataImage(image(topics));
        List<Long> each = new ArrayList<>();
        Map<String, Long> byName = new HashMap<>();
        for (JsonNode topic : topics) {
            String name = topic.get("name").asText();
            each.add(Utils.computeTopicHash(name, image));
            byName.put(name, each.get(each.size() - 1));
        }
        return Map.of("topics", each, "group", Utils.computeGroupHash(byName));
    }

    // A broker for each rack, and one without.
    private static MetadataImage image(JsonNode topics) {
        MetadataDelta delta = new MetadataDelta.Builder().setImage(MetadataImage.EMPTY).build();
        Set<String> names = new TreeSet<>();
        topics.forEach(topic -> topic.get("racks").forEach(row -> row.forEach(rack -> names.add(rack.asText()))));
        List<String> racks = new ArrayList<>(names);
        for (int broker = 0; broker < racks.size(); broker++)
            delta.replay(new RegisterBrokerRecord().setBrokerId(broker).setRack(racks.get(broker)));
        delta.replay(new RegisterBrokerRecord().setBrokerId(racks.size()).setRack(null));
        for (JsonNode topic : topics) {
            Uuid id = id(topic.get("id").asText());
            delta.replay(new TopicRecord().setName(topic.get("name").asText()).setTopicId(id));
            for (int partition = 0; partition < topic.get("racks").size(); partition++) {
                List<Integer> replicas = new ArrayList<>();
                topic.get("racks").get(partition).forEach(rack -> replicas.add(racks.indexOf(rack.asText())));
                if (replicas.isEmpty())
                    replicas.add(racks.size());
                delta.replay(new PartitionRecord().setTopicId(id).setPartitionId(partition)
                    .setReplicas(replicas).setIsr(replicas).setLeader(replicas.get(0)));
            }
        }
        return delta.apply(MetadataProvenance.EMPTY);
    }

    private static Uuid id(String text) {
        java.util.UUID id = java.util.UUID.fromString(text);
        return new Uuid(id.getMostSignificantBits(), id.getLeastSignificantBits());
    }

    private static String text(Uuid id) {
        return new java.util.UUID(id.getMostSignificantBits(), id.getLeastSignificantBits()).toString();
    }
}
