// Runs Apache Kafka's ConsumerGroupCommand many times in one JVM: each argument is one command line, its words
// separated by spaces. What a command prints comes after a line that repeats it.

import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.consumer.group.ConsumerGroupCommand;

public class GroupCommands {
    public static void main(String[] commands) {
        Exit.setExitProcedure((code, message) -> {
            throw new IllegalStateException("exit " + code + (message == null ? "" : ": " + message));
        });
        String servers = commands[0];
        for (int i = 1; i < commands.length; i++) {
            System.out.println("$ " + commands[i]);
            try {
                ConsumerGroupCommand.main(("--bootstrap-server " + servers + " " + commands[i]).split(" "));
            } catch (IllegalStateException ended) {
                System.out.println(ended.getMessage());
            }
            System.out.flush();
        }
    }
}
