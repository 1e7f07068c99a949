package org.pocketune.trainer

import app.cash.turbine.test
import java.io.File
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertIs
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** The course of a training, on a runtime that follows a script. The built state's first number is about 0. */
class TrainingTest {
    @TempDir lateinit var folder: File

    private val program = Fixture.stateless
    private lateinit var runtime: ScriptedRuntime

    @Test
    fun `a training tells what it does, in order`() = withTrainer { trainer ->
        trainer.fit(Fixture.samples(12), Plan(epochs = 2, checkpointEvery = 3), Fixture.samples(5)).test {
            val started = assertIs<TrainEvent.Started>(awaitItem())
            assertEquals(listOf(12, 5, 2, 4, 0), started.run { listOf(samples, heldOut, epochs, steps, resumedAt) })
            assertEquals(0 to 0, assertIs<TrainEvent.Step>(awaitItem()).run { epoch to step })
            assertEquals(0 to 1, assertIs<TrainEvent.Step>(awaitItem()).run { epoch to step })
            assertTrue(assertIs<TrainEvent.Evaluated>(awaitItem()).isBest)
            assertEquals(1 to 2, assertIs<TrainEvent.Step>(awaitItem()).run { epoch to step })
            assertEquals(TrainEvent.Checkpointed(3), awaitItem())
            assertEquals(1 to 3, assertIs<TrainEvent.Step>(awaitItem()).run { epoch to step })
            assertIs<TrainEvent.Evaluated>(awaitItem())
            val finished = assertIs<TrainEvent.Finished>(awaitItem())
            assertEquals(1, finished.adopted)
            assertTrue(checkNotNull(finished.after?.accuracy) > checkNotNull(finished.before?.accuracy))
            awaitComplete()
        }
        // The last batch of each epoch holds 4 rows and 4 of weight 0.
        assertEquals(List(2) { listOf(List(8) { 1f }, List(4) { 1f } + List(4) { 0f }) }.flatten(), runtime.weights)
        assertEquals(listOf("personal.state"), folder.list()?.toList())
    }

    @Test
    fun `no thread of a trainer keeps a process alive`() {
        val before = Thread.getAllStackTraces().keys
        withTrainer { trainer ->
            trainer.fit(Fixture.samples(8)).collect {
                val own = Thread.getAllStackTraces().keys - before
                assertTrue(own.any { it.name.startsWith("pocketune") })
                assertEquals(listOf(), own.filter { !it.isDaemon })
            }
        }
    }

    @Test
    fun `a state whose accuracy fell is not adopted`() = withTrainer(accuracy = { 1 - it }) { trainer ->
        trainer.save()
        val before = trainer.evaluate(Fixture.samples(4))
        val last = trainer.fit(Fixture.samples(8), plan, Fixture.samples(4)).toList().last()
        val finished = assertIs<TrainEvent.Finished>(last)
        assertNull(finished.adopted)
        assertEquals(before, trainer.evaluate(Fixture.samples(4)))
        assertEquals(1, trainer.restore().generation)
    }

    @Test
    fun `an early stop keeps the best epoch`() = withTrainer(loss = { (it - 0.2f) * (it - 0.2f) }) { trainer ->
        val stopping = Plan(epochs = 50, earlyStop = EarlyStop(3))
        val events = trainer.fit(Fixture.samples(8), stopping, Fixture.samples(4)).toList()
        val finished = assertIs<TrainEvent.Finished>(events.last())
        assertTrue(finished.stoppedEarly)
        assertEquals(5, events.filterIsInstance<TrainEvent.Step>().size)
        assertEquals(events.filterIsInstance<TrainEvent.Evaluated>().minOf { it.evaluation.loss }, finished.after?.loss)
        assertEquals(finished.after, trainer.evaluate(Fixture.samples(4)))
    }

    @Test
    fun `divergence is told, and nothing of it stays`() =
        withTrainer(loss = { if (it > 0.25f) Float.NaN else 1f }) { trainer ->
            val before = trainer.evaluate(Fixture.samples(4))
            val last = trainer.fit(Fixture.samples(8), Plan(epochs = 9, checkpointEvery = 1)).toList().last()
            assertEquals(3, assertIs<TrainEvent.Diverged>(last).step)
            assertEquals(before, trainer.evaluate(Fixture.samples(4)))
            assertEquals(emptyList(), folder.list()?.toList())
        }

    @Test
    fun `a gradient that an accelerator cannot say ends it in plain words, and nothing of it stays`() {
        var calls = 0
        withTrainer(program = Fixture.program("mlp-split"), gradient = { if (++calls > 20) 131008f else 1f }) { trainer ->
            val before = trainer.evaluate(Fixture.samples(4))
            val last = trainer.fit(Fixture.samples(8), Plan(epochs = 99, checkpointEvery = 1)).toList().last()
            val diverged = assertIs<TrainEvent.Diverged>(last)
            assertTrue("loss scale" in diverged.why && "131008" in diverged.why, diverged.why)
            assertEquals(before, trainer.evaluate(Fixture.samples(4)))
            assertEquals(emptyList(), folder.list()?.toList())
        }
    }

    @Test
    fun `weights that are not finite under a finite loss are never written`() = withTrainer(loss = { 1f }) { trainer ->
        val wild = Plan(epochs = 2, learningRate = LearningRate.Constant(3e38f))
        assertIs<TrainEvent.Diverged>(trainer.fit(Fixture.samples(8), wild).toList().last())
        assertEquals(emptyList(), folder.list()?.toList())
    }

    @Test
    fun `heat pauses it until it is gone`() {
        var questions = 0
        val cooling = ThermalSource { if (questions++ < 3) ThermalStatus.SEVERE else ThermalStatus.LIGHT }
        withTrainer(guards = Guards(thermal = cooling, pollMillis = 1)) { trainer ->
            val events = trainer.fit(Fixture.samples(8), plan).toList()
            assertEquals(TrainEvent.Paused(PauseReason.Heat(ThermalStatus.SEVERE)), events[1])
            assertEquals(TrainEvent.Resumed, events[2])
            assertIs<TrainEvent.Finished>(events.last())
        }
    }

    @Test
    fun `each guard has its reason`() {
        fun battery(percent: Int, charging: Boolean) = object : BatterySource {
            override fun percent() = percent

            override fun isCharging() = charging
        }
        assertEquals(PauseReason.Battery(5), Guards(battery = battery(5, false)).reasonToPause())
        assertNull(Guards(battery = battery(5, true)).reasonToPause())
        val fine = Guards({ ThermalStatus.MODERATE }, battery(50, false), { false })
        assertNull(fine.reasonToPause())
        assertEquals(PauseReason.Memory, Guards(memory = { true }).reasonToPause())
        assertNull(Guards().reasonToPause())
    }

    @Test
    fun `the user pauses and resumes`() = withTrainer { trainer ->
        trainer.pause()
        trainer.fit(Fixture.samples(8), plan).test {
            assertIs<TrainEvent.Started>(awaitItem())
            assertEquals(TrainEvent.Paused(PauseReason.Person), awaitItem())
            expectNoEvents()
            trainer.resume()
            assertEquals(TrainEvent.Resumed, awaitItem())
            assertIs<TrainEvent.Step>(awaitItem())
            cancelAndIgnoreRemainingEvents()
        }
    }

    @Test
    fun `a step that takes too long is told while it runs`() = withTrainer(onStep = { if (it == 0) Thread.sleep(2000) }) { trainer ->
        val events = trainer.fit(Fixture.samples(8), Plan(epochs = 1, stalledMillis = 10)).toList()
        val told = events.indexOfFirst { it is TrainEvent.Stalled }
        assertTrue(told in 1 until events.indexOfFirst { it is TrainEvent.Step })
    }

    @Test
    fun `an interpreter error in mid-epoch leaves the old state`() =
        withTrainer(onStep = { if (it == 2) throw RuntimeFailedException("the runtime gave up") }) { trainer ->
            val before = trainer.evaluate(Fixture.samples(4))
            val failure = assertFailsWith<RuntimeFailedException> { trainer.fit(Fixture.samples(40), plan).collect {} }
            assertTrue("gave up" in failure.message.orEmpty())
            assertEquals(before, trainer.evaluate(Fixture.samples(4)))
            assertIs<TrainEvent.Finished>(trainer.fit(Fixture.samples(8), plan).toList().last())
        }

    @Test
    fun `a full disk leaves the old state, in memory and on the disk`() {
        val disk = FailingDisk()
        withTrainer(disk = disk) { trainer ->
            trainer.fit(Fixture.samples(8), plan).collect {}
            val before = trainer.evaluate(Fixture.samples(4))
            disk.isFull = true
            val failure = assertFailsWith<StorageException> { trainer.fit(Fixture.samples(8), plan).collect {} }
            assertTrue("No space" in failure.message.orEmpty())
            assertFailsWith<StorageException> { trainer.rollback() }
            assertEquals(before, trainer.evaluate(Fixture.samples(4)))
            assertEquals(1, trainer.restore().generation)
        }
    }

    @Test
    fun `undo, redo and reset`() = withTrainer { trainer ->
        val built = trainer.evaluate(Fixture.samples(4))
        assertFailsWith<NoStateException> { trainer.rollback() }
        trainer.fit(Fixture.samples(8), plan).collect {}
        val taught = trainer.evaluate(Fixture.samples(4))
        assertEquals(2, trainer.rollback().generation)
        assertEquals(built, trainer.evaluate(Fixture.samples(4)))
        trainer.rollback()
        assertEquals(taught, trainer.evaluate(Fixture.samples(4)))
        trainer.reset()
        assertEquals(built, trainer.evaluate(Fixture.samples(4)))
        trainer.rollback()
        assertEquals(taught, trainer.evaluate(Fixture.samples(4)))
        assertEquals(5, trainer.restore().generation)
    }

    @Test
    fun `where the newest state is lost, undo goes back to what was built`() = withTrainer { trainer ->
        val built = trainer.evaluate(Fixture.samples(4))
        repeat(2) { trainer.fit(Fixture.samples(8), plan).collect {} }
        val newest = File(folder, "personal.state")
        newest.writeBytes(newest.readBytes().also { it[it.lastIndex] = 77 })
        assertEquals(1, trainer.restore().generation)
        val older = trainer.evaluate(Fixture.samples(4))
        trainer.rollback()
        assertEquals(built, trainer.evaluate(Fixture.samples(4)))
        trainer.rollback()
        assertEquals(older, trainer.evaluate(Fixture.samples(4)))
    }

    @Test
    fun `what would change the state is refused while it trains`() = withTrainer { trainer ->
        trainer.fit(Fixture.samples(80), plan).first { event ->
            if (event is TrainEvent.Step) {
                assertFailsWith<BusyException> { trainer.save() }
                assertFailsWith<BusyException> { trainer.restore() }
                assertFailsWith<BusyException> { trainer.rollback() }
                assertFailsWith<BusyException> { trainer.reset() }
                assertFailsWith<BusyException> { trainer.fit(Fixture.samples(8), plan).collect {} }
                assertEquals(4, trainer.infer(Fixture.samples(4).map { it.inputs }).size)
            }
            event is TrainEvent.Step
        }
        trainer.save()
    }

    @Test
    fun `another plan or other samples begin anew`() = withTrainer { trainer ->
        val long = Plan(epochs = 1, checkpointEvery = 2)
        suspend fun resumedAt(count: Int, plan: Plan) =
            (trainer.fit(Fixture.samples(count), plan).first() as TrainEvent.Started).resumedAt
        trainer.fit(Fixture.samples(80), long).first { it is TrainEvent.Checkpointed && it.steps == 4 }
        assertEquals(0, resumedAt(80, Plan(epochs = 1, checkpointEvery = 2, seed = 1)))
        assertEquals(0, resumedAt(79, long))
        assertEquals(4, resumedAt(80, long))
        trainer.forget()
        assertEquals(0, resumedAt(80, long))
    }

    @Test
    fun `bad samples and plans are refused before the first step`() = withTrainer { trainer ->
        val good = Fixture.sample()
        val bad = listOf(
            listOf(),
            listOf(Fixture.sample(4)),
            listOf(Fixture.sample(-1)),
            listOf(Fixture.sample(0, Float.NaN)),
            listOf(Fixture.sample(0, 0f)),
            listOf(Sample(FloatArray(35), 0)),
            listOf(good, Sample(FloatArray(36) { Float.NaN }, 0)),
            listOf(Sample(emptyMap(), good.targets)),
            listOf(Sample(good.inputs + ("z" to good.targets.getValue("y")), good.targets)),
            listOf(Sample(good.inputs, Values.Floats(FloatArray(1)))),
            List(1001) { good },
        )
        for (samples in bad) assertFailsWith<InputException> { trainer.fit(samples, plan).collect {} }
        val plans = listOf(
            Plan(epochs = 0), Plan(epochs = Int.MAX_VALUE), Plan(learningRate = LearningRate.Constant(Float.NaN)),
            Plan(replay = Replay(Fixture.samples(4), 1.0)), Plan(checkpointEvery = -1), Plan(earlyStop = EarlyStop(0)),
        )
        for (each in plans) assertFailsWith<InputException> { trainer.fit(Fixture.samples(8), each).collect {} }
        assertFailsWith<InputException> { trainer.fit(listOf(good), plan, listOf(Fixture.sample(9))).collect {} }
        assertFailsWith<InputException> { trainer.infer(emptyList()) }
        assertEquals(0, runtime.weights.size)
    }

    @Test
    fun `a batch whose rows influence each other is not filled up`() =
        withTrainer(program = Fixture.program("mixing")) { trainer ->
            val whole = Fixture.samples(16)
            val unseen = whole.dropLast(1) + Fixture.sample(0, 0f)
            suspend fun refused(call: suspend () -> Unit) {
                val message = assertFailsWith<InputException> { call() }.message.orEmpty()
                assertTrue("influence each other" in message && "whole batches of 8" in message, message)
            }
            for (samples in listOf(whole.take(7), unseen)) {
                refused { trainer.fit(samples, plan).collect {} }
                refused { trainer.fit(whole, plan, samples).collect {} }
                refused { trainer.evaluate(samples) }
            }
            refused { trainer.fit(whole, Plan(replay = Replay(Fixture.samples(4), 0.2))).collect {} }
            refused { trainer.infer(listOf(whole[0].inputs)) }
            assertEquals(0, runtime.weights.size)
            trainer.fit(whole, plan, whole).collect {}
            assertEquals(16, trainer.infer(whole.map { it.inputs }).size)
        }

    @Test
    fun `rows of no length of the program are refused`() = withTrainer(program = Fixture.program("lengths")) { trainer ->
        fun ids(count: Int) = mapOf<String, Values>("x" to Values.Ints(IntArray(count)))
        for (tokens in listOf(0, 13)) {
            val message = assertFailsWith<InputException> { trainer.infer(listOf(ids(tokens))) }.message.orEmpty()
            assertTrue("$tokens tokens, and rows of this program have 1 to 12" in message, message)
        }
        assertFailsWith<InputException> { trainer.fit(listOf(Sample(ids(5), Values.Ints(IntArray(4)))), plan).collect {} }
        assertEquals(0, runtime.weights.size)
    }

    @Test
    fun `a state that must not be overwritten is told of before the first step`() = withTrainer { trainer ->
        Fixture.file("cnn.state").copyTo(File(folder, "personal.state"))
        assertFailsWith<ForeignStateException> { trainer.fit(Fixture.samples(8), plan).collect {} }
        assertEquals(0, runtime.weights.size)
        trainer.setAside()
        trainer.fit(Fixture.samples(8), plan).collect {}
    }

    private val plan = Plan(epochs = 2)

    private fun withTrainer(
        loss: (Float) -> Float = { 1 / (1 + it * it) },
        accuracy: (Float) -> Float = { 0.1f + it / 100 },
        gradient: () -> Float = { 1f },
        onStep: (Int) -> Unit = {},
        guards: Guards = Guards(),
        disk: Disk = RealDisk,
        program: Program = this.program,
        test: suspend (Trainer) -> Unit,
    ) = runBlocking {
        val factory = RuntimeFactory {
            ScriptedRuntime(it.manifest, loss, accuracy, gradient, onStep = onStep).also { made -> runtime = made }
        }
        val store = Store(folder, "personal.state", disk)
        Trainer.open(program, factory, store, guards, Limits(samples = 1000)).use { test(it) }
        assertTrue(runtime.isClosed)
    }
}
