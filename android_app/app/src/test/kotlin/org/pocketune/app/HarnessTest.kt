package org.pocketune.app

import java.io.ByteArrayOutputStream
import java.io.File
import java.lang.management.ManagementFactory
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.double
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.put
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.pocketune.app.harness.Harness
import org.pocketune.app.harness.Job
import org.robolectric.RobolectricTestRunner

@RunWith(RobolectricTestRunner::class)
class HarnessTest {
    @get:Rule val folder = TemporaryFolder()
    private val results by lazy { File(folder.root, "results") }
    private val harness by lazy {
        val device = buildJsonObject { put("model", "test") }
        val conditions = buildJsonObject { put("thermal", "none") }
        val threads = ManagementFactory.getThreadMXBean()
        Harness(results, File(folder.root, "scratch"), device, { conditions }) {
            threads.allThreadIds.sumOf { maxOf(0, threads.getThreadCpuTime(it)) } / 1e6
        }
    }
    private val job by lazy {
        Job(Job.FORMAT, "run-1", "target/assets/digits.tflite", batches().path, steps = 12, learningRate = 2e-3f, repeats = 2)
    }

    @Before fun loadLibrary() {
        TestApp.real
    }

    @Test fun `a job leaves every step, the state and a result`() = runBlocking {
        harness.run(job)
        val lines = lines()
        assertEquals("device", lines.first().text("type"))
        val steps = lines.filter { it.text("type") == "step" }
        assertEquals(24, steps.size)
        // Each repeat begins from the state that was built.
        val (first, second) = steps.map { it.getValue("loss").jsonPrimitive.double }.chunked(12)
        assertEquals(first, second)
        assertTrue(first.last() < first.first())
        assertTrue(steps.all { it.getValue("millis").jsonPrimitive.double > 0 })
        assertTrue(steps.all { it.getValue("cpu_millis").jsonPrimitive.double > 0 })
        val start = lines.first { it.text("type") == "start" }
        assertEquals("cpu", start.text("runs"))
        val result = result()
        assertTrue(result.getValue("ok").jsonPrimitive.boolean)
        assertEquals(lines.size, result.getValue("lines").jsonPrimitive.int)
        assertEquals("PTSTATE\n", File(results, "run-1.state").readBytes().decodeToString(0, 8))
        assertFalse(File(folder.root, "scratch").exists())
    }

    @Test fun `what cannot be run says why`() = runBlocking {
        val bad = listOf(
            job.copy(steps = 0) to "steps",
            job.copy(format = "other") to "format",
            job.copy(program = File(folder.root, "none.tflite").path) to "none.tflite",
            job.copy(program = job.batches) to "",
            job.copy(batches = folder.newFile("short.bin").apply { writeBytes(ByteArray(17)) }.path) to "17 bytes",
        )
        for ((wrong, why) in bad) {
            harness.run(wrong)
            val error = result().text("error")
            assertFalse(result().getValue("ok").jsonPrimitive.boolean)
            assertTrue("$why: $error", why in error)
        }
    }

    @Test fun `an interrupted run has no result`() = runBlocking {
        harness.run(job)
        val run = launch(Dispatchers.Default) { harness.run(job.copy(steps = 100_000)) }
        while (!File(results, "run-1.jsonl").run { exists() && length() in 3000..Long.MAX_VALUE } || resultFile().exists()) delay(5)
        run.cancelAndJoin()
        assertFalse(resultFile().exists())
    }

    private fun batches() = folder.newFile("batches.bin").apply {
        val bytes = ByteArrayOutputStream()
        for (batch in Fixtures.read.person.chunked(8)) {
            val buffer = ByteBuffer.allocate(8 * 64 * 4 + 8 * 4 + 8 * 4).order(ByteOrder.LITTLE_ENDIAN)
            batch.forEach { drawing -> drawing.image.forEach(buffer::putFloat) }
            batch.forEach { buffer.putInt(it.label) }
            repeat(8) { buffer.putFloat(1f) }
            bytes.write(buffer.array())
        }
        writeBytes(bytes.toByteArray())
    }

    private fun lines() = File(results, "run-1.jsonl").readLines().map { Json.parseToJsonElement(it).jsonObject }

    private fun resultFile() = File(results, "run-1.result.json")

    private fun result() = Json.parseToJsonElement(resultFile().readText()).jsonObject

    private fun JsonObject.text(name: String) = (getValue(name) as JsonPrimitive).content
}
