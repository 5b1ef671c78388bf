// Asks Apache Kafka's controller how partitions change. Standard input is a list of cases in JSON: {"level", "min_isr",
// "eligible", "alive": [ids], "old": {...}, "goal": {...}}. Prints one object per case: the record, or {} for none.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;

public class PartitionChanges {
    private static final Uuid TOPIC = new Uuid(7, 7);

    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        for (JsonNode one : mapper.readTree(System.in))
            System.out.println(mapper.writeValueAsString(shown(changed(one))));
    }

    private static Optional<ApiMessageAndVersion> changed(JsonNode one) {
        Set<Integer> alive = new HashSet<>(list(one.get("alive")));
        MetadataVersion level = MetadataVersion.fromFeatureLevel((short) one.get("level").asInt());
        PartitionChangeBuilder builder = new PartitionChangeBuilder(registration(one.get("old")), TOPIC, 0,
            alive::contains, level, one.get("min_isr").asInt(), one.get("eligible").asBoolean());
        JsonNode goal = one.get("goal");
        builder.setDefaultDirProvider(broker -> directory(100 * broker));
        builder.setElection(PartitionChangeBuilder.Election.valueOf(goal.get("election").asText()));
        if (goal.has("isr")) builder.setTargetIsr(list(goal.get("isr")));
        if (goal.has("replicas")) builder.setTargetReplicas(list(goal.get("replicas")));
        if (goal.has("adding")) builder.setTargetAdding(list(goal.get("adding")));
        if (goal.has("removing")) builder.setTargetRemoving(list(goal.get("removing")));
        if (goal.has("recovery_state"))
            builder.setTargetLeaderRecoveryState(LeaderRecoveryState.of((byte) goal.get("recovery_state").asInt()));
        if (goal.has("lost")) builder.setUncleanShutdownReplicas(List.of(goal.get("lost").asInt()));
        if (goal.has("moved")) builder.setDirectory(goal.get("moved").asInt(), directory(99));
        return builder.build();
    }

    private static PartitionRegistration registration(JsonNode old) {
        List<Uuid> directories = new ArrayList<>();
        old.get("directories").forEach(number -> directories.add(directory(number.asInt())));
        return new PartitionRegistration.Builder().
            setReplicas(ids(old.get("replicas"))).
            setDirectories(directories.toArray(new Uuid[0])).
            setIsr(ids(old.get("isr"))).
            setAddingReplicas(ids(old.get("adding"))).
            setRemovingReplicas(ids(old.get("removing"))).
            setElr(ids(old.get("elr"))).
            setLastKnownElr(ids(old.get("last_known"))).
            setLeader(old.get("leader").asInt()).
            setLeaderRecoveryState(LeaderRecoveryState.of((byte) old.get("recovery_state").asInt())).
            setLeaderEpoch(4).
            setPartitionEpoch(9).
            build();
    }

    private static Map<String, Object> shown(Optional<ApiMessageAndVersion> found) {
        Map<String, Object> fields = new TreeMap<>();
        if (found.isEmpty()) return fields;
        PartitionChangeRecord record = (PartitionChangeRecord) found.get().message();
        fields.put("isr", record.isr());
        fields.put("leader", record.leader());
        fields.put("replicas", record.replicas());
        fields.put("removing_replicas", record.removingReplicas());
        fields.put("adding_replicas", record.addingReplicas());
        fields.put("leader_recovery_state", record.leaderRecoveryState());
        fields.put("eligible_leader_replicas", record.eligibleLeaderReplicas());
        fields.put("last_known_elr", record.lastKnownElr());
        if (record.directories() == null) fields.put("directories", null);
        else fields.put("directories", record.directories().stream().map(Uuid::getLeastSignificantBits).toList());
        return fields;
    }

    private static Uuid directory(int number) {
        return new Uuid(number > 2 ? 1 : 0, number);
    }

    private static List<Integer> list(JsonNode node) {
        List<Integer> found = new ArrayList<>();
        node.forEach(number -> found.add(number.asInt()));
        return found;
    }

    private static int[] ids(JsonNode node) {
        return list(node).stream().mapToInt(Integer::intValue).toArray();
    }
}
