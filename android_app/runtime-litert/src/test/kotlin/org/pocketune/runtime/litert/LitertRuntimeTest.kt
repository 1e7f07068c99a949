package org.pocketune.runtime.litert

import com.google.ai.edge.litert.CompiledModel.GpuOptions.Precision
import com.google.ai.edge.litert.Native
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.abs
import kotlin.test.AfterTest
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.filterIsInstance
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.float
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import org.pocketune.trainer.Accelerator
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.RuntimeReport
import org.pocketune.trainer.Sample
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer
import com.google.ai.edge.litert.Accelerator as Hardware

/** Which accelerator is taken, what is said of it, and that what it computes arrives. */
class LitertRuntimeTest {
    @TempDir lateinit var folder: File

    private val all = setOf(Hardware.CPU, Hardware.GPU, Hardware.NPU)
    private val asOnTheHost = Plan(epochs = 1, learningRate = LearningRate.Constant(0.02f), shuffle = false, checkpointEvery = 0)

    @AfterTest
    fun noMore() {
        Native.current = null
    }

    @ParameterizedTest
    @ValueSource(strings = ["mlp-variables", "mlp-stateless", "mlp-split", "cnn-by-4-stateless", "cnn-by-4-split"])
    fun `fifty steps on the CPU are as on the host`(name: String) {
        val (losses, report) = trained(name, FakeLitert(), preference = emptyList())
        assertClose(name, losses, 1e-5f)
        assertEquals(RuntimeReport("LiteRT", Accelerator.CPU, Accelerator.CPU, "1 thread"), report)
    }

    @Test
    fun `a head of a file of several trains as on the host`(): Unit = runBlocking {
        natives
        Native.current = FakeLitert()
        val trace = Json.parseToJsonElement(File(programs, "traces.json").readText()).jsonObject.getValue("the-other-head").jsonObject
        val (first, end) = trace.getValue("rows").jsonArray.map { it.jsonPrimitive.int }
        val plan = Plan(epochs = 2, learningRate = LearningRate.Constant(0.02f), seed = trace.getValue("seed").jsonPrimitive.long)
        val program = Program.open(File(programs, "heads.tflite"), head = "birds")
        val losses = Trainer.open(program, LitertRuntimeFactory(folder, emptyList()), Store(File(folder, "store"))).use { trainer ->
            trainer.fit(samples("mlp").subList(first, end), plan).filterIsInstance<TrainEvent.Step>().toList().map { it.loss }
        }
        val expected = trace.getValue("events").jsonArray.mapNotNull { it.jsonObject["loss"].takeIf { _ -> "step" in it.jsonObject } }
        assertEquals(expected.size, losses.size)
        for ((i, loss) in expected.withIndex()) assertTrue(abs(loss.jsonPrimitive.float - losses[i]) < 1e-5f, "step $i: ${losses[i]}")
    }

    @Test
    fun `the GPU runs all of it in float32, or is not taken`() {
        val native = FakeLitert(all)
        val (losses, report) = trained("mlp-stateless", native, listOf(Accelerator.GPU))
        assertClose("mlp-stateless", losses, 1e-5f)
        assertEquals(Accelerator.GPU, report.runs)
        assertTrue("whole" in report.detail, "$report")
        assertNull(report.fallback)
        assertTrue(setOf(Hardware.GPU) to Precision.FP32 in native.compiled, "${native.compiled}")
        val refused = trained("mlp-stateless", FakeLitert(all, leftOver = setOf(Hardware.GPU)), listOf(Accelerator.GPU)).second
        assertEquals(Accelerator.GPU to Accelerator.CPU, refused.asked to refused.runs)
        assertEquals("GPU: LiteRT does not take the program: Some ops are not accelerated.", refused.fallback)
    }

    @Test
    fun `an NPU gives the gradients and the CPU updates in float32`() {
        val (losses, report) = trained("mlp-split", FakeLitert(all))
        assertEquals(Accelerator.NPU, report.runs)
        assertTrue("whole, in half precision" in report.detail && "float32 on the CPU" in report.detail, "$report")
        assertClose("mlp-split", losses, 1e-2f)
        assertTrue(losses.zip(expected("mlp-split")).any { (a, b) -> a != b })
    }

    @Test
    fun `an NPU that takes a part says that it is a part`() {
        val report = trained("mlp-split", FakeLitert(all, leftOver = setOf(Hardware.NPU))).second
        assertEquals(Accelerator.NPU, report.runs)
        assertTrue("does not say how much" in report.detail, "$report")
    }

    @Test
    fun `an NPU that computes nothing is found out`() {
        val report = trained("mlp-split", FakeLitert(all, leftOver = setOf(Hardware.NPU), takes = false)).second
        assertEquals(Accelerator.NPU to Accelerator.GPU, report.asked to report.runs)
        assertTrue("nothing of the program runs there" in report.fallback.orEmpty(), "$report")
    }

    @Test
    fun `an accelerator that computes another loss is not taken`() {
        for (wrong in listOf<(Float) -> Float>({ 0f }, { it * 1.1f + 0.1f }, { Float.NaN })) {
            val (losses, report) = trained("mlp-split", FakeLitert(all, spoil = wrong))
            assertEquals(Accelerator.CPU, report.runs)
            assertEquals(2, Regex("where the CPU has").findAll(report.fallback.orEmpty()).count(), "$report")
            assertClose("mlp-split", losses, 1e-5f)
        }
    }

    @Test
    fun `what was compiled for the NPU runs there, and what was compiled from another program is found out`() {
        val split = ByteBuffer.wrap(File(programs, "mlp-split.tflite").readBytes())
        val native = FakeLitert(all)
        assertEquals(Accelerator.NPU, trained("mlp-split", native, compiled = split).second.runs)
        val (part, whole) = native.paths.partition { it.endsWith(".npu.tflite") }
        assertEquals(listOf(1, 1), listOf(part.size, whole.size))
        val other = ByteBuffer.wrap(File(programs, "cnn-split.tflite").readBytes())
        val report = trained("mlp-split", FakeLitert(all), listOf(Accelerator.NPU), other).second
        assertEquals(Accelerator.CPU, report.runs)
        assertTrue("not found" in report.fallback.orEmpty(), "$report")
    }

    @Test
    fun `what an accelerator cannot run is not tried on it`() {
        val variables = trained("mlp-variables", FakeLitert(all)).second
        assertEquals(2, Regex("stateless or split").findAll(variables.fallback.orEmpty()).count(), "$variables")
        val stateless = trained("mlp-stateless", FakeLitert(all)).second
        assertEquals(Accelerator.GPU, stateless.runs)
        assertTrue("NPU: half precision" in stateless.fallback.orEmpty(), "$stateless")
        val bare = trained("mlp-split", FakeLitert(setOf(Hardware.CPU))).second
        assertEquals("NPU: LiteRT finds none on this device; GPU: LiteRT finds none on this device", bare.fallback)
    }

    @Test
    fun `an app without the library is told so`() {
        val failure = assertFailsWith<RuntimeFailedException> { LitertRuntimeFactory(folder).open(program("mlp-split")) }
        assertTrue("library is not in this app" in failure.message.orEmpty(), "$failure")
    }

    @Test
    fun `a folder that cannot be written is told of`() {
        Native.current = FakeLitert()
        val file = File(folder, "file").apply { createNewFile() }
        val failure = assertFailsWith<RuntimeFailedException> { LitertRuntimeFactory(file).open(program("mlp-split")) }
        assertTrue("cannot be written" in failure.message.orEmpty(), "$failure")
    }

    @Test
    fun `two runtimes of a program leave each other alone`() {
        natives
        Native.current = FakeLitert()
        val program = program("mlp-split")
        LitertRuntimeFactory(folder).open(program).use { first ->
            LitertRuntimeFactory(folder).open(program).close()
            Probe(program).compare(first, first)
        }
        assertEquals(listOf("${program.digest}.tflite"), folder.list()?.toList())
    }

    @Test
    fun `heads of one file share its copy`() {
        natives
        Native.current = FakeLitert()
        for (head in listOf("birds", "frogs")) {
            LitertRuntimeFactory(folder, emptyList()).open(Program.open(File(programs, "heads.tflite"), head)).close()
        }
        val copy = assertNotNull(folder.listFiles()).single()
        assertContentEquals(File(programs, "heads.tflite").readBytes(), copy.readBytes())
    }

    /** Losses of the steps of the host, and the report; all that was opened is closed. */
    private fun trained(
        name: String,
        native: FakeLitert,
        preference: List<Accelerator> = listOf(Accelerator.NPU, Accelerator.GPU),
        compiled: ByteBuffer? = null,
    ): Pair<List<Float>, RuntimeReport> = runBlocking {
        natives
        Native.current = native
        val factory = LitertRuntimeFactory(File(folder, "cache"), preference, compiled = compiled)
        val result = Trainer.open(program(name), factory, Store(File(folder, "store"))).use { trainer ->
            val steps = trainer.fit(samples(name.substringBeforeLast('-')), asOnTheHost).filterIsInstance<TrainEvent.Step>().toList()
            steps.map { it.loss } to trainer.report
        }
        assertEquals(0, native.open)
        File(folder, "store").deleteRecursively()
        result
    }

    private fun assertClose(name: String, losses: List<Float>, error: Float) {
        val expected = expected(name)
        assertEquals(expected.size, losses.size)
        val worst = expected.indices.maxOf { abs(expected[it] - losses[it]) }
        assertTrue(worst < error, "off by $worst")
    }

    private fun expected(name: String) = if (name.endsWith("split")) floats("$name.losses") else floats("${name.substringBeforeLast('-')}.losses")

    private fun program(name: String) = Program.open(File(programs, "$name.tflite"))

    private fun floats(name: String) = buffer(name).asFloatBuffer().let { b -> List(b.limit()) { b.get(it) } }

    private fun buffer(name: String) = ByteBuffer.wrap(File(programs, name).readBytes()).order(ByteOrder.LITTLE_ENDIAN)

    private fun samples(model: String): List<Sample> {
        val x = floats("$model.x")
        val y = buffer("$model.y").asIntBuffer()
        val weight = floats("$model.weight")
        return List(y.limit()) { Sample(x.subList(36 * it, 36 * (it + 1)).toFloatArray(), y.get(it), weight[it]) }
    }

    private companion object {
        val programs = File(System.getProperty("programs"))

        /** TFLite's library links to these by name. */
        val natives by lazy {
            for (name in listOf("c", "m", "dl", "log")) System.load("${System.getProperty("java.library.path")}/lib$name.so")
        }
    }
}
