import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/** Takes and frees Curator's mutex as often as each line of its input says; answers with nanoseconds. */
public final class CuratorCycles {
    public static void main(String[] arguments) throws Exception {
        try (CuratorFramework client =
                CuratorFrameworkFactory.newClient(arguments[0], new RetryOneTime(100))) {
            client.start();
            client.blockUntilConnected();
            InterProcessMutex mutex = new InterProcessMutex(client, arguments[1]);
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                int cycles = Integer.parseInt(line);
                long start = System.nanoTime();
                for (int cycle = 0; cycle < cycles; cycle++) {
                    mutex.acquire();
                    mutex.release();
                }
                System.out.println(System.nanoTime() - start);
                System.out.flush();
            }
        }
    }
}
