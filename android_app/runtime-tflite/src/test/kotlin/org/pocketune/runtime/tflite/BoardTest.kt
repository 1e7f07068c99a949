package org.pocketune.runtime.tflite

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertNull
import kotlinx.coroutines.flow.filterIsInstance
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Sample
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent

/** A state that a microcontroller saved goes on here, and what is saved here is what its C++ reads (test_states.py). */
class BoardTest {
    @TempDir lateinit var folder: File

    @Test
    fun `a state of a board is written again to the byte`(): Unit = runBlocking {
        Fixture.trainer(Fixture.program("board"), Store(folder)).use { trainer ->
            assertEquals(1, trainer.restore(Fixture.file("board.state")).generation)
            trainer.export(File(folder, "out.state"))
            assertContentEquals(Fixture.file("board.state").readBytes(), File(folder, "out.state").readBytes())
        }
    }

    @Test
    fun `a step more is that of the host, and is saved as the host saves it`(): Unit = runBlocking {
        val ours = Fixture.file("board.state").copyTo(File(folder, "personal.state"))
        val (x, y) = Fixture.floats("board.x") to Fixture.ints("board.y")
        val samples = y.mapIndexed { i, label -> Sample(x.subList(12 * i, 12 * (i + 1)).toFloatArray(), label) }
        Fixture.trainer(Fixture.program("board"), Store(folder)).use { trainer ->
            assertNull(trainer.restore().unproven)
            val plan = Plan(epochs = 1, learningRate = LearningRate.Constant(0.01f), shuffle = false, checkpointEvery = 0)
            val steps = trainer.fit(samples, plan).filterIsInstance<TrainEvent.Step>().toList()
            assertClose(Fixture.floats("board.losses"), steps.map { it.loss })
        }
        ours.copyTo(Fixture.file("board-phone.state"), overwrite = true)
        assertClose(numbers(Fixture.file("board-trained.state")), numbers(ours), within = 1e-6)
        // What the C++ is tested with is such a file: the same layout, and nearly the same numbers.
        assertClose(numbers(Fixture.file("board-phone.recorded")), numbers(ours), within = 1e-6)
        assertEquals(header(Fixture.file("board-phone.recorded")), header(ours))
    }

    /** Where the tensors of a state file begin. */
    private fun begin(bytes: ByteArray) =
        (48 + ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).getInt(12) + 63) / 64 * 64

    private fun numbers(state: File): List<Float> = state.readBytes().let { bytes ->
        val at = begin(bytes)
        val floats = ByteBuffer.wrap(bytes, at, bytes.size - at).slice().order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
        List(floats.limit()) { floats.get(it) }
    }

    /** The header without checksums of its tensors, which differ by a last bit. */
    private fun header(state: File): String = state.readBytes().let { bytes ->
        val text = String(bytes, 48, begin(bytes) - 48)
        text.replace(Regex("\"sha256\":\"[0-9a-f]+\""), "").trimEnd('\u0000')
    }
}
