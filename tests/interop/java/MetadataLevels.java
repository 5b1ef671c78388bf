import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.image.writer.ImageWriterOptions;
import org.apache.kafka.image.writer.RecordListWriter;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;

/**
 * What Apache Kafka writes at each metadata.version. The arguments are metadata records in frames, as hex; they make an
 * image, which Kafka's own writer writes at every level:
 *
 *   level 13 3.6-IV1 true        number, name, whether it changed the metadata
 *   snapshot 13 01020002...      a record of the image
 *   change 13 01050100...        the change of a partition whose second replica left the ISR
 */
public class MetadataLevels {
    public static void main(String[] args) {
        MetadataDelta delta = new MetadataDelta.Builder().setImage(MetadataImage.EMPTY).build();
        for (String frame : args) {
            byte[] data = HexFormat.of().parseHex(frame);
            delta.replay(MetadataRecordSerde.INSTANCE.read(new ByteBufferAccessor(ByteBuffer.wrap(data)), data.length).message());
        }
        MetadataImage image = delta.apply(MetadataProvenance.EMPTY);
        for (MetadataVersion version : MetadataVersion.VERSIONS) {
            if (!version.isProduction()) continue;
            System.out.printf("level %d %s %s%n", version.featureLevel(), version, version.didMetadataChange());
            RecordListWriter writer = new RecordListWriter();
            image.write(writer, new ImageWriterOptions.Builder(version)
                .setEligibleLeaderReplicasEnabled(version.isElrSupported())
                .setLossHandler(loss -> { })
                .build());
            for (ApiMessageAndVersion record : writer.records()) print("snapshot", version, record);
            print("change", version, change(version));
        }
    }

    private static ApiMessageAndVersion change(MetadataVersion version) {
        Uuid one = new Uuid(1, 1), two = new Uuid(2, 2);
        PartitionRegistration partition = new PartitionRegistration.Builder()
            .setReplicas(new int[] {1, 2}).setIsr(new int[] {1, 2}).setDirectories(new Uuid[] {one, two}).setLeader(1)
            .setLeaderRecoveryState(LeaderRecoveryState.RECOVERED).setLeaderEpoch(0).setPartitionEpoch(0).build();
        return new PartitionChangeBuilder(partition, new Uuid(7, 7), 3, id -> true, version, 1, version.isElrSupported())
            .setTargetIsr(List.of(2)).setDefaultDirProvider(id -> one).build().orElseThrow();
    }

    private static void print(String what, MetadataVersion version, ApiMessageAndVersion record) {
        ObjectSerializationCache cache = new ObjectSerializationCache();
        ByteBuffer buffer = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(record, cache));
        MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(buffer));
        System.out.printf("%s %d %s%n", what, version.featureLevel(), HexFormat.of().formatHex(buffer.array()));
    }
}
