import java.io.File
import kotlin.random.Random
import kotlinx.coroutines.runBlocking
import org.pocketune.sample.Learner
import org.pocketune.trainer.Program
import org.pocketune.trainer.Sample
import org.pocketune.trainer.TrainEvent

/** What the sample's button does, on a JVM: arguments are the folder of Android's libraries, the program and a folder. */
fun main(arguments: Array<String>): Unit = runBlocking {
    val (natives, program, folder) = arguments
    for (name in listOf("c", "m", "dl", "log")) System.load("$natives/lib$name.so")
    val random = Random(0)
    val samples = List(120) { i -> Sample(FloatArray(8) { k -> random.nextFloat() + if (k % 3 == i % 3) 1 else 0 }, i % 3) }
    val learner = Learner.open(Program.open(File(program)), File(folder, "learned"))
    learner.teach(samples.drop(30), samples.take(30)).collect { if (it is TrainEvent.Finished) println("${it.after?.accuracy}") }
    println(learner.guess(floatArrayOf(0f, 1f, 0f, 0f, 1f, 0f, 0f, 1f)))
    learner.export(File(folder, "mine.tflite"))
}
