import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.retry.RetryOneTime;

/** Takes and frees a lock of Curator as often as each line of its input says; answers with nanoseconds. */
public final class CuratorCycles {
    public static void main(String[] arguments) throws Exception {
        try (CuratorFramework client =
                CuratorFrameworkFactory.newClient(arguments[0], new RetryOneTime(100))) {
            client.start();
            client.blockUntilConnected();
            Cycle body = cycleOf(client, arguments[1], arguments[2]);
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                int cycles = Integer.parseInt(line);
                long start = System.nanoTime();
                for (int cycle = 0; cycle < cycles; cycle++) {
                    body.run();
                }
                System.out.println(System.nanoTime() - start);
                System.out.flush();
            }
        }
    }

    private interface Cycle {
        void run() throws Exception;
    }

    private static Cycle cycleOf(CuratorFramework client, String path, String recipe) {
        if (recipe.equals("semaphore")) {
            InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, path, 3);
            return () -> semaphore.returnLease(semaphore.acquire());
        }
        InterProcessLock lock;
        if (recipe.equals("lock")) {
            lock = new InterProcessMutex(client, path);
        } else {
            InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, path);
            lock = recipe.equals("reader") ? both.readLock() : both.writeLock();
        }
        return () -> {
            lock.acquire();
            lock.release();
        };
    }
}
