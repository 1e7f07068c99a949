package org.pocketune.runtime.tflite

import java.io.Closeable
import java.io.File
import java.io.FileDescriptor
import java.io.FileInputStream
import kotlin.test.assertEquals
import kotlin.test.assertNotNull
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.trainer.Evaluation
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Program
import org.pocketune.trainer.Sample
import org.pocketune.trainer.StateException
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.Values

/** The lines that docs/android.md tells people to copy: they compile, and they do what it says. */
class TenLinesTest {
    @TempDir lateinit var filesDir: File

    private class Picture(val pixels: FloatArray, val label: Int)

    private val pictures = Fixture.samples("mlp").map {
        Picture((it.inputs.getValue("x") as Values.Floats).array, assertNotNull(it.label))
    }
    private val heldOut = Fixture.samples("mlp").take(8)
    private val pixels = pictures[0].pixels
    private val shown = mutableListOf<Float>()
    private val results = mutableListOf<Evaluation?>()

    /** As Android's AssetFileDescriptor. */
    private class Descriptor(file: File) : Closeable {
        private val stream = FileInputStream(file)
        val fileDescriptor: FileDescriptor = stream.fd
        val startOffset = 0L
        val length = file.length()

        override fun close() = stream.close()
    }

    private object assets {
        fun openFd(name: String): Descriptor =
            Descriptor(Fixture.file("mlp-variables.tflite")).also { check(name == "model.tflite") }
    }

    private fun showLoss(loss: Float) {
        shown += loss
    }

    private fun showResult(before: Evaluation?, after: Evaluation?, adopted: Long?) {
        assertNotNull(adopted)
        results += listOf(before, after)
    }

    @Test
    fun `they train`(): Unit = runBlocking {
        Fixture.natives
        // from here
        val program = assets.openFd("model.tflite").use {
            Program.open(FileInputStream(it.fileDescriptor).channel, it.startOffset, it.length) // mapped, not read
        }
        val store = Store(File(filesDir, "pocketune"))
        val trainer = Trainer.open(program, TfliteRuntimeFactory(threads = 2), store)
        try { trainer.restore() } catch (_: StateException) { trainer.setAside() /* none yet, or none that can be used */ }

        val taught: List<Sample> = pictures.map { Sample(it.pixels, it.label) }
        trainer.fit(taught, Plan(epochs = 5, learningRate = LearningRate.Cosine(0.1f)), heldOut).collect { event ->
            if (event is TrainEvent.Step) showLoss(event.loss)
            if (event is TrainEvent.Finished) showResult(event.before, event.after, event.adopted)
        }
        val scores = trainer.infer(listOf(mapOf("x" to Values.Floats(pixels)))).single()
        // to here
        trainer.close()
        assertTrue(shown.last() < shown.first())
        assertTrue(assertNotNull(results[1]).loss < assertNotNull(results[0]).loss)
        assertEquals(setOf("output"), scores.keys)
    }

    @Test
    fun `they are those of the documentation`() {
        val root = File(System.getProperty("programs"), "../../..")
        val source = "android_app/runtime-tflite/src/test/kotlin/org/pocketune/runtime/tflite/TenLinesTest.kt"
        val lines = File(root, source).readText().substringAfter("// from here\n").substringBefore("        // to here")
        val told = lines.trimEnd().lines().joinToString("\n") { it.removePrefix("        ") }
        assertTrue(told in File(root, "docs/android.md").readText(), told)
    }
}
