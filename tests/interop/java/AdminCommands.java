// Runs the administrator's commands of Apache Kafka one after the other in one JVM. The first argument is the address,
// each other one a command: the class and its words, separated by spaces. What a command prints comes after a line that
// repeats it.

import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

public class AdminCommands {
    public static void main(String[] commands) throws Exception {
        Exit.setExitProcedure((code, message) -> {
            throw new IllegalStateException("exit " + code);
        });
        System.setErr(System.out);
        for (int i = 1; i < commands.length; i++) {
            System.out.println("$ " + commands[i]);
            String[] words = commands[i].replace("{servers}", commands[0]).split(" ");
            try {
                Class.forName(words[0])
                    .getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            } catch (InvocationTargetException ended) {
                System.out.println(ended.getCause().getMessage());
            }
            System.out.flush();
        }
    }
}
