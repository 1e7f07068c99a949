package org.pocketune.runtime.tflite

import java.io.File
import java.nio.ByteBuffer
import java.util.concurrent.atomic.AtomicInteger
import kotlin.concurrent.thread
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.filterIsInstance
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeout
import org.junit.jupiter.api.Tag
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.trainer.ClosedException
import org.pocketune.trainer.EarlyStop
import org.pocketune.trainer.InputException
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.TrainingRuntime

/** The real library under cancelling, closing and threads. */
class LifecycleTest {
    @TempDir lateinit var folder: File

    private val samples = Fixture.samples("mlp")
    private val long = Plan(epochs = 100, learningRate = LearningRate.Constant(0.1f), checkpointEvery = 0)

    @Test
    @Tag("every-version")
    fun `the version under test is the one that runs`() = runBlocking {
        trainer("mlp-variables").use {
            assertTrue(System.getProperty("tflite.version") in it.report.runtime, "${it.report}")
        }
    }

    @Test
    @Tag("every-version")
    fun `a hundred rounds leave no thread and no memory`() = runBlocking {
        val before = threads()
        var halfway = 0
        repeat(100) { round ->
            trainer(if (round % 2 == 0) "mlp-variables" else "mlp-stateless").use {
                it.fit(samples.take(20), Plan(epochs = 1, checkpointEvery = 0)).collect {}
            }
            assertEquals(before, threads(), "round $round")
            if (round == 49) halfway = residentKilobytes()
        }
        // The second half, when the library and the JVM have taken what they need.
        val growth = residentKilobytes() - halfway
        assertTrue(growth < 8_000, "grew by $growth kB")
    }

    @Test
    fun `a cancelled training ends within a step and leaves the state as it was`() = runBlocking {
        for (name in listOf("mlp-variables", "mlp-stateless")) {
            val steps = AtomicInteger()
            trainer(name, runtime = counting(steps)).use { trainer ->
                val before = trainer.evaluate(samples)
                val job = launch(Dispatchers.Default) { trainer.fit(samples, long).collect {} }
                while (steps.get() < 20) delay(1)
                job.cancel()
                val begun = steps.get()
                job.join()
                assertTrue(steps.get() <= begun + 1, "${steps.get() - begun} steps began after the cancellation")
                assertEquals(before, trainer.evaluate(samples))
            }
        }
    }

    /** Counts the steps that begin. */
    private fun counting(steps: AtomicInteger) = RuntimeFactory { program ->
        val real = TfliteRuntimeFactory().open(program)
        object : TrainingRuntime by real {
            override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
                if (signature == "train") steps.incrementAndGet()
                real.run(signature, inputs, outputs)
            }
        }
    }

    @Test
    fun `closing from any thread waits for the step and ends the training with a typed error`() = runBlocking {
        repeat(20) { round ->
            val trainer = trainer("mlp-variables")
            val failure = assertFailsWith<ClosedException> {
                trainer.fit(samples, long).filterIsInstance<TrainEvent.Step>().collect { event ->
                    if (event.step == round) thread { trainer.close() }
                }
            }
            assertTrue("closed" in failure.message.orEmpty())
            assertFailsWith<ClosedException> { trainer.evaluate(samples) }
            trainer.close()
        }
        assertEquals(emptyList(), threads())
    }

    @Test
    fun `a collector on the trainer's own thread may close it`() = runBlocking {
        val trainer = trainer("mlp-stateless")
        val job = launch(Dispatchers.Unconfined) {
            assertFailsWith<ClosedException> {
                trainer.fit(samples, long).collect { if (it is TrainEvent.Step) trainer.close() }
            }
        }
        withTimeout(60_000) { job.join() }
        trainer.close()
        assertEquals(emptyList(), threads())
    }

    @Test
    fun `a closed runtime is not touched by a training that waited for its collector`() = runBlocking {
        val kinds = listOf(TrainEvent.Step::class, TrainEvent.Checkpointed::class, TrainEvent.Evaluated::class)
        for ((name, kind) in listOf("mlp-variables", "mlp-stateless").flatMap { name -> kinds.map { name to it } }) {
            val store = "$name $kind"
            val trainer = trainer(name, store, strict)
            var onDisk = emptyList<ByteArray>()
            val plan = Plan(epochs = 2, checkpointEvery = 1, earlyStop = EarlyStop(1))
            assertFailsWith<ClosedException>("$kind") {
                trainer.fit(samples.take(80), plan, samples.take(20)).collect { event ->
                    if (kind.isInstance(event)) withContext(Dispatchers.IO) {
                        trainer.close()
                        onDisk = files(store)
                    }
                }
            }
            assertEquals(onDisk.map { it.toList() }, files(store).map { it.toList() }, "written after it was closed")
        }
    }

    private fun files(store: String) = File(folder, store).listFiles().orEmpty().sorted().map { it.readBytes() }

    /** Fails when it is used after it was closed, whatever TFLite says to that. */
    private val strict = RuntimeFactory { program ->
        val real = TfliteRuntimeFactory().open(program)
        object : TrainingRuntime by real {
            private var isClosed = false

            override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
                check(!isClosed) { "$signature was called after the runtime was closed" }
                real.run(signature, inputs, outputs)
            }

            override fun close() {
                isClosed = true
                real.close()
            }
        }
    }

    @Test
    fun `a program that cannot evaluate trains, and says so when it is asked to`() = runBlocking {
        trainer("mlp-lean").use { trainer ->
            val events = trainer.fit(samples, Plan(epochs = 1, learningRate = LearningRate { _, _ -> 1f })).toList()
            assertEquals(1, (events.last() as TrainEvent.Finished).adopted)
            val refusals = listOf(
                assertFailsWith<InputException> { trainer.evaluate(samples) },
                assertFailsWith<InputException> { trainer.fit(samples, long, samples).collect {} },
            )
            refusals.forEach { assertTrue("--signatures" in it.message.orEmpty()) }
        }
    }

    @Test
    fun `closing ends a training that waits`() = runBlocking {
        val trainer = trainer("mlp-stateless")
        trainer.pause()
        val job = launch { assertFailsWith<ClosedException> { trainer.fit(samples, long).collect {} } }
        delay(50)
        trainer.close()
        withTimeout(60_000) { job.join() }
    }

    @Test
    fun `threads may infer, evaluate and be refused while it trains`() = runBlocking {
        trainer("mlp-variables").use { trainer ->
            val job = launch(Dispatchers.Default) { trainer.fit(samples, long).collect {} }
            val callers = List(8) { i ->
                launch(Dispatchers.Default) {
                    repeat(20) {
                        if (i % 2 == 0) trainer.infer(samples.take(3).map { it.inputs })
                        else trainer.evaluate(samples.take(30))
                    }
                }
            }
            callers.forEach { it.join() }
            job.cancelAndJoin()
        }
    }

    @Test
    fun `a training that died with its process goes on to the very same state`() = runBlocking {
        val plan = Plan(epochs = 2, checkpointEvery = 30)
        for (name in listOf("cnn-variables", "cnn-stateless")) {
            val whole = File(folder, "$name.whole")
            trainer(name, "whole").use { it.fit(Fixture.samples("cnn"), plan).collect {}; it.export(whole) }
            trainer(name, "parts").use { first ->
                first.fit(Fixture.samples("cnn"), plan).first { it is TrainEvent.Step && it.step == 75 }
            }
            trainer(name, "parts").use { second ->
                val events = second.fit(Fixture.samples("cnn"), plan).toList()
                assertEquals(60, (events.first() as TrainEvent.Started).resumedAt)
                assertEquals(60, events.filterIsInstance<TrainEvent.Step>().first().step)
                val parts = File(folder, "$name.parts").also { second.export(it) }
                assertEquals(whole.readBytes().toList(), parts.readBytes().toList())
            }
            File(folder, "parts").deleteRecursively()
            File(folder, "whole").deleteRecursively()
        }
    }

    @Test
    fun `a step that diverges changes nothing`() = runBlocking {
        for (name in listOf("mlp-variables", "mlp-stateless")) {
            trainer(name, name).use { trainer ->
                trainer.save()
                val before = trainer.evaluate(samples)
                val saved = File(folder, "$name/personal.state").readBytes().toList()
                val wild = Plan(epochs = 50, learningRate = LearningRate.Constant(1e38f))
                assertTrue(trainer.fit(samples, wild, samples).toList().last() is TrainEvent.Diverged)
                assertEquals(before, trainer.evaluate(samples))
                assertEquals(saved, File(folder, "$name/personal.state").readBytes().toList())
            }
        }
    }

    @Test
    fun `what is cancelled while it loads is closed`() = runBlocking {
        repeat(10) {
            val job = launch(Dispatchers.Default) { trainer("cnn-variables").close() }
            delay(2)
            job.cancelAndJoin()
        }
        assertFailsWith<CancellationException> { withTimeout(0) { trainer("cnn-variables") } }
        withTimeout(60_000) { while (threads().isNotEmpty()) delay(1) }
    }

    private suspend fun trainer(
        name: String,
        store: String = "store",
        runtime: RuntimeFactory = TfliteRuntimeFactory(),
    ): Trainer = Fixture.trainer(Fixture.program(name), Store(File(folder, store)), runtime)

    /** The trainers' own. */
    private fun threads() = Thread.getAllStackTraces().keys.map { it.name }.filter { it.startsWith("pocketune") }

    /** What the process holds, without garbage. */
    private fun residentKilobytes(): Int {
        System.gc()
        return File("/proc/self/status").readLines().first { it.startsWith("VmRSS") }.filter { it.isDigit() }.toInt()
    }
}
