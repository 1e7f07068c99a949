package org.pocketune.runtime.tflite

import java.io.File
import java.nio.ByteBuffer
import kotlin.math.abs
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import org.pocketune.trainer.InputException
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.Values
import org.pocketune.trainer.tensors

/** Channels that are redrawn, in the official library: the host's draws, the same model, and a training that died. */
class RedrawnTest {
    @TempDir lateinit var folder: File

    private val samples = Fixture.samples("mlp").take(44)
    private val plan = Plan(epochs = 4, learningRate = LearningRate.Constant(0.01f), seed = 3, redraw = true, checkpointEvery = 4)

    @ParameterizedTest
    @ValueSource(strings = ["redrawn", "redrawn-by-2"])
    fun `it draws what the host draws, and goes on from the same model`(name: String): Unit = trained(name) { trainer ->
        trainer.fit(samples, plan).toList()
        val before = outputs(trainer)
        val drawn = trainer.redrawChannels(seed = 5)
        assertEquals(Fixture.ints("redrawn.channels"), drawn.values.flatMap { it.toList() })
        outputs(trainer).forEachIndexed { i, value -> assertTrue(abs(value - before[i]) < 1e-5, "$value, was ${before[i]}") }
        val once = state(trainer)
        trainer.redrawChannels(seed = 5)
        assertEquals(once, state(trainer), "again before the next step")
        assertTrue(once.getValue("dense/change").all { it.toInt() == 0 } && once.getValue("heads/change").all { it.toInt() == 0 })
        assertEquals(drawn.keys, trainer.redrawChannels(samples).keys)
        val refused = assertFailsWith<InputException> { trainer.redrawChannels(seed = -1) }
        assertTrue("whole number from 0 on" in refused.message.orEmpty())
    }

    @Test
    fun `a training that died in an epoch, or between two, goes on as it would have`(): Unit = runBlocking {
        val whole = trained("redrawn", "whole") { it.fit(samples, plan).toList() }
        val wanted = state(File(folder, "whole/personal.state"))
        assertEquals(listOf(4, 8, 12, 16, 20), whole.filterIsInstance<TrainEvent.Checkpointed>().map { it.steps })
        // Epochs have six steps: 8 is inside the second one, 12 between the second and the third.
        for ((stop, at) in listOf(9 to 8, 13 to 12)) {
            trained("redrawn", "died-$stop") { trainer ->
                trainer.fit(samples, plan).first { it is TrainEvent.Step && it.step == stop }
            }
            val rest = trained("redrawn", "died-$stop") { it.fit(samples, plan).toList() }
            assertEquals(at, (rest[0] as TrainEvent.Started).resumedAt)
            assertEquals(wanted, state(File(folder, "died-$stop/personal.state")))
        }
    }

    @Test
    fun `programs whose channels stay are refused`(): Unit = trained("chosen-variables") { trainer ->
        for (refused in listOf(
            assertFailsWith<InputException> { trainer.fit(samples, plan).toList() },
            assertFailsWith<InputException> { trainer.redrawChannels(seed = 1) },
        )) assertTrue("build it with --update channels-10-redrawn" in refused.message.orEmpty())
    }

    @Test
    fun `what was added is in the exported file, which is the host's to the byte`(): Unit = trained("redrawn-filed") { trainer ->
        trainer.restore(Fixture.file("redrawn-filed.state"))
        val plain = File(folder, "plain.tflite")
        trainer.exportInference(plain)
        assertContentEquals(Fixture.file("redrawn-filed.plain").readBytes(), plain.readBytes())
    }

    private fun <T> trained(program: String, name: String = program, work: suspend (Trainer) -> T): T = runBlocking {
        val own = File(folder, name).apply { mkdir() }
        Fixture.trainer(Fixture.program(program), Store(own), TfliteRuntimeFactory()).use { work(it) }
    }

    private suspend fun outputs(trainer: Trainer): List<Float> =
        trainer.infer(samples.take(8).map { it.inputs }).flatMap { (it.values.single() as Values.Floats).array.toList() }

    private suspend fun state(trainer: Trainer): Map<String, List<Byte>> = trainer.tensors().mapValues { (_, bytes) -> bytes.all() }

    /** What follows the header of a state file, which has the generation. */
    private fun state(file: File): List<Byte> {
        val bytes = file.readBytes()
        return bytes.toList().takeLast(bytes.size / 2)
    }

    private fun ByteBuffer.all() = List(limit()) { get(it) }
}
