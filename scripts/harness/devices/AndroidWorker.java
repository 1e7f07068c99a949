import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;
import kotlin.coroutines.EmptyCoroutineContext;
import kotlinx.coroutines.BuildersKt;
import kotlinx.serialization.json.Json;
import kotlinx.serialization.json.JsonElement;
import kotlinx.serialization.json.JsonElementKt;
import kotlinx.serialization.json.JsonObject;
import org.pocketune.app.harness.Harness;
import org.pocketune.app.harness.Job;

/**
 * Runs a job as the app's harness activity does, by the app's own classes and the official Android library, on a JVM.
 *
 * <p>java ... AndroidWorker JOB.json RESULTS [ROOT], where ROOT stands before the paths in the job. The property
 * `natives` is a folder with the library and what it needs from Android; under an emulator that counts instructions
 * (scripts/arm64/instructions.c) `counts` is the file that it writes.
 */
public final class AndroidWorker {
    private static final String COUNTS = System.getProperty("counts");

    /** Lets the emulator write down how many instructions of the library have run. */
    private static native void count();

    public static void main(String[] arguments) throws Exception {
        for (String name : List.of("libc", "libm", "libdl", "liblog")) {
            System.load(Path.of(System.getProperty("natives"), name + ".so").toString());
        }
        if (COUNTS != null) {
            System.load(Path.of(System.getProperty("natives"), "counter.so").toString());
        }
        String root = arguments.length > 2 ? arguments[2] : "";
        Job read = Json.Default.decodeFromString(Job.Companion.serializer(), Files.readString(Path.of(arguments[0])));
        Job job = read.copy(
            read.getFormat(), read.getId(), root + read.getProgram(), root + read.getBatches(), read.getSteps(),
            read.getLearningRate(), read.getThreads(), read.getAccelerator(), read.getRepeats());
        File scratch = Files.createTempDirectory("pocketune-worker").toFile();
        Harness harness = new Harness(
            new File(arguments[1]), scratch, facts(), AndroidWorker::conditions, () -> cpuMillis(job.getThreads()));
        BuildersKt.runBlocking(EmptyCoroutineContext.INSTANCE, (scope, continuation) -> harness.run(job, continuation));
    }

    private static JsonObject facts() {
        Map<String, JsonElement> facts = new HashMap<>();
        facts.put("model", JsonElementKt.JsonPrimitive(System.getProperty("os.arch")));
        facts.put("cores", JsonElementKt.JsonPrimitive(Runtime.getRuntime().availableProcessors()));
        return new JsonObject(facts);
    }

    /**
     * CPU time of this process so far. One thread of TFLite is the caller's own, and Java counts that to the nanosecond,
     * without those of its compiler; of the whole process it counts hundredths of a second.
     */
    private static double cpuMillis(int threads) {
        if (threads > 1) {
            return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e6;
        }
        ThreadMXBean clock = ManagementFactory.getThreadMXBean();
        return LongStream.of(clock.getAllThreadIds()).map(clock::getThreadCpuTime).filter(time -> time > 0).sum() / 1e6;
    }

    /** The most memory of this process so far, and instructions where they are counted; the other conditions of a phone do not exist here. */
    private static JsonObject conditions() {
        try {
            Map<String, JsonElement> conditions = new HashMap<>();
            for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
                if (line.startsWith("VmHWM:")) {
                    long peak = Long.parseLong(line.replaceAll("[^0-9]", ""));
                    conditions.put("peak_rss_kib", JsonElementKt.JsonPrimitive(peak));
                }
            }
            if (COUNTS != null) {
                count();
                long instructions = Long.parseLong(Files.readString(Path.of(COUNTS)).strip());
                conditions.put("instructions", JsonElementKt.JsonPrimitive(instructions));
            }
            return new JsonObject(conditions);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }
}
