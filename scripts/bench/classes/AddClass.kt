// Adds a class to a program as a phone would, from the files of a folder that on_jvm.py has written, and answers rows.
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.coroutines.runBlocking
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.Program
import org.pocketune.trainer.Role
import org.pocketune.trainer.Sample
import org.pocketune.trainer.Shrinkage
import org.pocketune.trainer.Store
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.Values

private fun read(file: File): ByteBuffer = ByteBuffer.wrap(file.readBytes()).order(ByteOrder.LITTLE_ENDIAN)

private fun rows(file: File, size: Int, isFloat: Boolean): List<Map<String, Values>> {
    val data = read(file)
    return List(data.limit() / 4 / size) {
        mapOf("x" to if (isFloat) Values.Floats(FloatArray(size) { data.getFloat() }) else Values.Ints(IntArray(size) { data.getInt() }))
    }
}

private suspend fun answers(trainer: Trainer, rows: List<Map<String, Values>>): List<Int> =
    rows.chunked(32).flatMap { trainer.infer(it) }.map { row ->
        val logits = (row.values.single() as Values.Floats).array
        logits.indices.maxByOrNull { logits[it] } ?: -1
    }

fun main(arguments: Array<String>) = runBlocking {
    val folder = File(arguments[0])
    val program = Program.open(File(folder, "program.tflite"))
    val input = program.manifest.step.taking(Role.INPUT).single()
    fun given(name: String) = rows(File(folder, "$name.x"), input.rowSize, input.dtype == Dtype.FLOAT32)
    val labels = read(File(folder, "own.y")).let { data -> List(data.limit() / 4) { data.getInt() } }
    val own = given("own").zip(labels) { x, y -> Sample(x, Values.Ints(intArrayOf(y))) }
    val few = given("few")
    Trainer.open(program, TfliteRuntimeFactory(), Store(File(folder, "state"))).use { trainer ->
        trainer.setClassMeans(own)
        val label = trainer.addClass("added", few)
        println("means " + answers(trainer, given("held_out")).joinToString(" "))
        trainer.setClassMeans(own + few.map { Sample(it, Values.Ints(intArrayOf(label))) }, Shrinkage.Auto)
        println("discriminant " + answers(trainer, given("held_out")).joinToString(" "))
    }
}
