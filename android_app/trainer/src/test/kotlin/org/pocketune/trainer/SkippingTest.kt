package org.pocketune.trainer

import java.io.File
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Rows that are learned do not come: by whose loss, until when, and after a crash. The host's trainings: TraceTest. */
class SkippingTest {
    @TempDir lateinit var folder: File

    private val skip = SkipLearned(below = 0.5f, revisit = 3)
    private lateinit var runtime: ScriptedRuntime

    @Test
    fun `rows do not come that lost less when they came last, but every few epochs`() {
        val skipping = Skipping(skip, 5, last = 5)
        val places = listOf(4, 2, 0, 1, 3, 2)
        assertEquals(places, skipping.coming(1, places), "nothing is known of them")
        skipping.see(listOf(2, 4, 1), floatArrayOf(0.4f, 0.5f, Float.NaN))
        assertEquals(listOf(4, 0, 1, 3) to 2, skipping.coming(2, places) to skipping.leftOut)
        assertEquals(places to 0, skipping.coming(3, places) to skipping.leftOut)
        skipping.see(listOf(2), floatArrayOf(0.6f))
        assertEquals(places to 0, skipping.coming(4, places) to skipping.leftOut)
        skipping.see(listOf(2), floatArrayOf(0.4f))
        assertEquals(listOf(4, 0, 1, 3) to 2, skipping.coming(4, places) to skipping.leftOut)
        assertEquals(places to 0, skipping.coming(5, places) to skipping.leftOut, "the last")
    }

    @Test
    fun `a training that died goes on with the rows that would have come`() {
        val plan = Plan(epochs = 9, learningRate = LearningRate.Constant(0.1f), skip = skip, checkpointEvery = 4)
        fun told(name: String, end: suspend (Trainer) -> List<TrainEvent>) = withTrainer(name) { trainer -> end(trainer) }
        val whole = told("whole") { it.fit(Fixture.samples(21), plan).toList() }
        val checkpoints = whole.filterIsInstance<TrainEvent.Checkpointed>().map { it.steps }
        assertEquals(listOf(9, 18, 24), checkpoints, "behind epochs after which all rows come")
        val skipped = whole.filterIsInstance<TrainEvent.Skipped>()
        assertTrue(skipped.size > 3 && skipped.map { it.rows }.toSet().size > 1, "$skipped")
        // The training is at most a step ahead of whoever collects, and behind this step come more than one of epochs 4 and 5.
        told("died") { trainer ->
            listOf(trainer.fit(Fixture.samples(21), plan).first { it is TrainEvent.Step && it.epoch == 4 })
        }
        val rest = told("died") { it.fit(Fixture.samples(21), plan).toList() }
        assertEquals(9, (rest[0] as TrainEvent.Started).resumedAt)
        fun steps(events: List<TrainEvent>) =
            events.filterIsInstance<TrainEvent.Step>().filter { it.epoch >= 3 }.map { listOf(it.step, it.loss, it.weight) }
        assertEquals(steps(whole), steps(rest))
        assertEquals(skipped.filter { it.epoch >= 3 }, rest.filterIsInstance<TrainEvent.Skipped>())
        val states = listOf("whole", "died").map { StateFile.unpack(java.nio.ByteBuffer.wrap(File(folder, "$it/personal.state").readBytes())) }
        assertEquals(states[0].tensors.map { it.bytes.copy().toList() }, states[1].tensors.map { it.bytes.copy().toList() })
    }

    @Test
    fun `an epoch of which no row comes has no step, and rates are those of all rows`() {
        val plan = Plan(epochs = 4, learningRate = { step, _ -> step / 16f }, skip = SkipLearned(1e6f, 3))
        val events = withTrainer("none") { it.fit(Fixture.samples(32), plan, Fixture.samples(4)).toList() }
        assertEquals(listOf(0, 1, 2, 3, 12, 13, 14, 15), events.filterIsInstance<TrainEvent.Step>().map { it.step })
        assertEquals(listOf(0, 1, 2, 3, 12, 13, 14, 15).map { it / 16f }, runtime.rates)
        assertEquals(listOf(1, 2).map { TrainEvent.Skipped(it, 32, 32) }, events.filterIsInstance<TrainEvent.Skipped>())
        assertEquals(4, events.filterIsInstance<TrainEvent.Evaluated>().size)
    }

    @Test
    fun `plans that cannot skip are refused with the reason`() {
        fun said(plan: Plan, program: Program = Fixture.program("losses")) =
            assertFailsWith<InputException> { Inputs(program.manifest, Limits()).check(plan) }.message.orEmpty()
        assertTrue("build it with --row-losses on" in said(Plan(skip = skip), Fixture.stateless))
        assertTrue("a multiple of 3" in said(Plan(skip = skip, firstEpoch = 4)))
        for (below in listOf(0f, Float.NaN, Float.POSITIVE_INFINITY)) {
            assertTrue("below is a loss above 0" in said(Plan(skip = SkipLearned(below))))
        }
        assertTrue("revisit must be at least 2" in said(Plan(skip = SkipLearned(0.1f, 1))))
        Inputs(Fixture.program("losses").manifest, Limits()).check(Plan(skip = skip, firstEpoch = 6))
    }

    /** Row i of a step loses i + 1 times what the first one does, and less from step to step. */
    private fun <T> withTrainer(store: String, test: suspend (Trainer) -> T): T = runBlocking {
        val factory = RuntimeFactory { ScriptedRuntime(it.manifest, { value -> 0.3f / (1 + value) }).also { made -> runtime = made } }
        val own = File(folder, store).apply { mkdirs() }
        Trainer.open(Fixture.program("losses"), factory, Store(own)).use { test(it) }
    }
}
