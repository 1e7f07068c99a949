package org.pocketune.runtime.tflite

import java.io.File
import kotlin.test.assertEquals
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.trainer.Accelerator
import org.pocketune.trainer.RuntimeReport
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.tensorflow.lite.Delegate

/** Who wants the GPU and does not get it trains on the CPU and is told why. */
class AcceleratorTest {
    @TempDir lateinit var folder: File

    @Test
    fun `the CPU is what it says`() = assertNull(trained("mlp-stateless", TfliteRuntimeFactory(threads = 2)).fallback)

    @Test
    fun `variables stay on the CPU`() {
        val report = trained("mlp-variables", TfliteRuntimeFactory(Accelerator.GPU))
        assertEquals(Accelerator.GPU to Accelerator.CPU, report.asked to report.runs)
        assertTrue("stateless" in report.fallback.orEmpty(), "$report")
    }

    @Test
    fun `there is no NPU for this library`() {
        val report = trained("mlp-split", TfliteRuntimeFactory(Accelerator.NPU))
        assertEquals(Accelerator.NPU to Accelerator.CPU, report.asked to report.runs)
        assertTrue("LiteRT" in report.fallback.orEmpty(), "$report")
    }

    @Test
    fun `an app without the GPU library`() {
        // The real delegate: its native library is not on this machine's path.
        val report = trained("mlp-stateless", TfliteRuntimeFactory(Accelerator.GPU))
        assertEquals(Accelerator.CPU, report.runs)
        assertTrue("GPU library" in report.fallback.orEmpty(), "$report")
    }

    @Test
    fun `a delegate that refuses`() {
        val refusing = DelegateMaker { throw UnsupportedOperationException("this device's GPU is not supported") }
        val report = trained("mlp-stateless", TfliteRuntimeFactory(Accelerator.GPU, 1, true, refusing))
        assertEquals("this device's GPU is not supported", report.fallback)
    }

    @Test
    fun `a delegate that fails while it loads is closed`() {
        var closed = 0
        val failing = DelegateMaker {
            object : Delegate {
                override fun getNativeHandle(): Long = throw IllegalArgumentException("earlier words\nno OpenCL")

                override fun close() {
                    closed++
                }
            }
        }
        val report = trained("mlp-stateless", TfliteRuntimeFactory(Accelerator.GPU, 1, true, failing))
        assertTrue(report.fallback.orEmpty().endsWith("no OpenCL"), "$report")
        assertEquals(1, closed)
    }

    /** What a trainer reports that has really trained. */
    private fun trained(program: String, factory: TfliteRuntimeFactory): RuntimeReport = runBlocking {
        Fixture.trainer(Fixture.program(program), Store(folder), factory).use { trainer ->
            val events = trainer.fit(Fixture.samples("mlp").take(16), Fixture.asOnTheHost).toList()
            assertTrue(events.last() is TrainEvent.Finished)
            trainer.report
        }
    }
}
