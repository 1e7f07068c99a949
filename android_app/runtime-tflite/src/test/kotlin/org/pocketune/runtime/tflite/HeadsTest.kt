package org.pocketune.runtime.tflite

import java.io.File
import kotlin.math.abs
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Tag
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.trainer.Adopt
import org.pocketune.trainer.ForeignStateException
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.ReplayException
import org.pocketune.trainer.ReplayMemory
import org.pocketune.trainer.Store
import org.pocketune.trainer.Values

/** One head of a file of several (android_app/heads_programs.py); its trainings are among those of [TraceTest]. */
class HeadsTest {
    @TempDir lateinit var folder: File

    @Tag("every-version")
    @Test
    fun `a head that the host trained infers and is exported as there`(): Unit = runBlocking {
        Fixture.trainer(Fixture.program("heads", "frogs"), Store(folder)).use { trainer ->
            val state = Fixture.file("trace-a-head-of-two.state")
            trainer.restore(state)
            val expected = Fixture.floats("heads.output")
            val rows = Fixture.samples("mlp").take(expected.size / 6).map { it.inputs }
            val outputs = trainer.infer(rows).flatMap { (it.getValue("output") as Values.Floats).array.toList() }
            assertEquals(expected.size, outputs.size)
            for ((i, value) in expected.withIndex()) assertTrue(abs(value - outputs[i]) < 1e-5f, "number $i")
            trainer.export(File(folder, "out.state"))
            assertContentEquals(state.readBytes(), File(folder, "out.state").readBytes())
            trainer.exportInference(File(folder, "out.tflite"))
            assertContentEquals(Fixture.file("heads.plain").readBytes(), File(folder, "out.tflite").readBytes())
        }
    }

    @Test
    fun `a state of another head is refused by both names, also where the two are the same model`(): Unit = runBlocking {
        val (samples, own, state) = Triple(Fixture.samples("mlp").take(40), File(folder, "own"), File(folder, "mine.state"))
        val learned = Fixture.trainer(Fixture.program("twins", "mine"), Store(own)).use { trainer ->
            trainer.fit(samples, Plan(epochs = 2, learningRate = LearningRate.Constant(0.02f))).toList()
            trainer.export(state)
            trainer.evaluate(samples)
        }
        Fixture.trainer(Fixture.program("twins", "mine"), Store(own)).use { trainer ->
            trainer.restore()
            assertEquals(learned, trainer.evaluate(samples))
        }
        Fixture.trainer(Fixture.program("twins", "yours"), Store(File(folder, "other"))).use { trainer ->
            val before = trainer.evaluate(samples)
            val refused = assertFailsWith<ForeignStateException> { trainer.restore(state) }
            assertTrue("adam of the head mine there, adam of the head yours here" in refused.message.orEmpty(), "$refused")
            assertEquals(before, trainer.evaluate(samples))
            assertEquals(emptyList(), trainer.restore(state, Adopt.MATCHING).left)
            assertEquals(learned, trainer.evaluate(samples))
        }
    }

    @Test
    fun `rows that one head remembers are of that head`(): Unit = runBlocking {
        val (mine, yours) = listOf("mine", "yours").map { Fixture.program("twins", it) }
        val file = File(folder, "mine.memory")
        Fixture.trainer(mine, Store(folder)).use { it.remember(ReplayMemory.open(file, mine), Fixture.samples("mlp").take(5)) }
        assertEquals(5, ReplayMemory.open(file, mine).seen)
        val refused = assertFailsWith<ReplayException> { ReplayMemory.open(file, yours) }
        assertTrue("the head of a file of several" in refused.message.orEmpty(), "$refused")
    }
}
