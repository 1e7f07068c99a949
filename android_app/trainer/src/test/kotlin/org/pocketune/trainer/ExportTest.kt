package org.pocketune.trainer

import java.io.File
import java.nio.ByteBuffer
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Job
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** The plain model is written whole or not at all; SameAsPythonTest has what is in it. */
class ExportTest {
    @TempDir lateinit var folder: File

    private val plain get() = File(folder, "plain.tflite")

    @Test
    fun `it replaces what was there, and only when it is whole`() {
        val disk = FailingDisk()
        withTrainer(disk = disk) { trainer ->
            trainer.exportInference(plain)
            val good = plain.readBytes()
            assertEquals("TFL3", String(good, 4, 4))
            disk.isFull = true
            val failure = assertFailsWith<StorageException> { trainer.exportInference(plain) }
            assertTrue("No space left" in failure.message.orEmpty(), failure.message)
            assertContentEquals(good, plain.readBytes())
            assertEquals(listOf("plain.tflite"), folder.list()?.toList())
        }
    }

    @Test
    fun `cancelling leaves no file`() {
        val job = Job()
        withTrainer(disk = CancellingDisk(job)) { trainer ->
            assertFailsWith<CancellationException> { withContext(job) { trainer.exportInference(plain) } }
            assertTrue(folder.list().orEmpty().isEmpty())
        }
    }

    @Test
    fun `numbers that are not finite, adapters, and a training that runs are refused`() {
        withTrainer { trainer ->
            trainer.fit(Fixture.samples(8), Plan(1, LearningRate.Constant(1f), checkpointEvery = 0)).first {
                assertFailsWith<BusyException> { trainer.exportInference(plain) }
                true
            }
        }
        withTrainer(Fixture.program("mlp-variables"), runtime = ::broken) { trainer ->
            val failure = assertFailsWith<DivergedException> { trainer.exportInference(plain) }
            assertTrue("NaN" in failure.message.orEmpty(), failure.message)
        }
        withTrainer(Fixture.program("adapted")) { trainer ->
            val failure = assertFailsWith<InputException> { trainer.exportInference(File(folder, "none.tflite")) }
            assertTrue("has an adapter" in failure.message.orEmpty(), failure.message)
        }
        assertTrue(folder.list().orEmpty().isEmpty())
    }

    /** Its state has gone bad. */
    private fun broken(manifest: Manifest) = object : TrainingRuntime by ScriptedRuntime(manifest) {
        private val whole = ScriptedRuntime(manifest)

        override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
            whole.run(signature, inputs, outputs)
            if (signature == "save") outputs.values.first().putFloat(0, Float.NaN)
        }
    }

    private fun withTrainer(
        program: Program = Fixture.stateless,
        disk: Disk = RealDisk,
        runtime: (Manifest) -> TrainingRuntime = { ScriptedRuntime(it) },
        work: suspend (Trainer) -> Unit,
    ) = runBlocking {
        val store = Store(folder, "personal.state", disk)
        Trainer.open(program, { runtime(it.manifest) }, store).use { work(it) }
    }
}

/** While the first piece is written, the caller is cancelled. */
private class CancellingDisk(private val job: Job) : Disk by RealDisk {
    override fun write(file: File, pieces: Sequence<ByteBuffer>) =
        RealDisk.write(file, pieces.onEach { job.cancel() })
}
