package org.pocketune.runtime.tflite

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.concurrent.TimeUnit
import kotlin.math.abs
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.filterIsInstance
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Assumptions.assumeTrue
import org.junit.jupiter.api.Tag
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.CsvSource
import org.junit.jupiter.params.provider.ValueSource
import org.pocketune.trainer.DamagedStateException
import org.pocketune.trainer.InputException
import org.pocketune.trainer.Plan
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.SplitRuntime
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Values
import org.tensorflow.lite.Interpreter

/** The official Android library, driven by the trainer, against the host's runtime on the same programs. */
class SameAsPythonTest {
    @TempDir lateinit var folder: File

    @Tag("every-version")
    @ParameterizedTest
    @CsvSource(
        "mlp,variables,true", "mlp,variables,false", "mlp,stateless,true", "mlp,stateless,false",
        "two,variables,true", "two,stateless,true",
        "cnn,variables,true", "cnn,variables,false", "cnn,stateless,true", "cnn,stateless,false",
        "mlp-by-2,variables,true", "mlp-by-2,variables,false", "mlp-by-2,stateless,true", "mlp-by-2,stateless,false",
        "cnn-by-4,variables,true", "cnn-by-4,variables,false", "cnn-by-4,stateless,true", "cnn-by-4,stateless,false",
    )
    fun `fifty steps give the same losses and the same state`(model: String, export: String, xnnpack: Boolean): Unit =
        runBlocking {
            val factory = TfliteRuntimeFactory(xnnpack = xnnpack)
            Fixture.trainer(Fixture.program("$model-$export"), Store(folder), factory).use { trainer ->
                val steps = trainer.fit(Fixture.samples(model), Fixture.asOnTheHost)
                    .filterIsInstance<TrainEvent.Step>().toList()
                assertClose(Fixture.floats("$model.losses"), steps.map { it.loss })
                assertClose(data(Fixture.file("$model.state")), data(File(folder, "personal.state")))
            }
        }

    @Test
    fun `a seed gives the training of the host`(): Unit = runBlocking {
        Fixture.trainer(Fixture.program("mlp-lean"), Store(folder), TfliteRuntimeFactory()).use { trainer ->
            val steps = trainer.fit(Fixture.samples("mlp"), Plan(epochs = 2, seed = 5))
                .filterIsInstance<TrainEvent.Step>().toList()
            assertEquals(100, steps.size)
            assertClose(Fixture.floats("mlp.fit"), steps.map { it.loss })
        }
    }

    @Tag("every-version")
    @ParameterizedTest
    @CsvSource(
        "mlp,true", "mlp,false", "mlp-by-2,true", "mlp-by-2,false", "two,true",
        "cnn,true", "cnn,false", "cnn-by-4,true", "cnn-by-4,false", "noisy,true",
    )
    fun `fifty split steps give the same losses and the same state`(model: String, xnnpack: Boolean): Unit = runBlocking {
        val data = if (model == "noisy") "mlp" else model
        // Each half has an interpreter of its own on the same file, as it has with an accelerator.
        val factory = RuntimeFactory {
            SplitRuntime(TfliteRuntimeFactory(xnnpack = xnnpack).open(it), TfliteRuntimeFactory(xnnpack = !xnnpack).open(it))
        }
        Fixture.trainer(Fixture.program("$model-split"), Store(folder), factory).use { trainer ->
            val steps = trainer.fit(Fixture.samples(data), Fixture.asOnTheHost)
                .filterIsInstance<TrainEvent.Step>().toList()
            assertClose(Fixture.floats("$model-split.losses"), steps.map { it.loss })
            assertClose(data(Fixture.file("$model-split.state")), data(File(folder, "personal.state")))
            if (model == "mlp") assertClose(Fixture.floats("mlp.losses"), steps.map { it.loss })
        }
    }

    @Tag("every-version")
    @ParameterizedTest
    @CsvSource("mlp,variables", "mlp,stateless", "cnn,variables", "cnn,stateless", "cnn-by-4,variables", "cnn-by-4,stateless")
    fun `a state of the host is taken, and written again to the byte`(model: String, export: String): Unit = runBlocking {
        Fixture.trainer(Fixture.program("$model-$export"), Store(folder)).use { trainer ->
            val before = trainer.evaluate(Fixture.samples(model))
            assertEquals(1, trainer.restore(Fixture.file("$model.state")).generation)
            assertTrue(trainer.evaluate(Fixture.samples(model)).loss < before.loss)
            trainer.export(File(folder, "out.state"))
            assertContentEquals(Fixture.file("$model.state").readBytes(), File(folder, "out.state").readBytes())
        }
    }

    @Tag("every-version")
    @ParameterizedTest
    @ValueSource(strings = ["variables", "stateless"])
    fun `few rows are inferred as many are`(export: String): Unit = runBlocking {
        Fixture.trainer(Fixture.program("cnn-$export"), Store(folder)).use { trainer ->
            trainer.restore(Fixture.file("cnn.state"))
            val rows = Fixture.samples("cnn").take(8).map { it.inputs }
            fun numbers(answers: List<Map<String, Values>>) =
                answers.flatMap { answer -> answer.values.flatMap { (it as Values.Floats).array.toList() } }
            val all = numbers(trainer.infer(rows))
            assertTrue(all.any { it != 0f })
            for (many in listOf(1, 5)) {
                assertClose(all, rows.chunked(many).flatMap { numbers(trainer.infer(it)) })
            }
        }
    }

    @ParameterizedTest
    @ValueSource(strings = ["lengths", "lengths-stateless"])
    fun `of a text as much is inferred as there is of it, whichever signature takes it`(name: String): Unit = runBlocking {
        Fixture.trainer(Fixture.program(name), Store(folder)).use { trainer ->
            val text = (Fixture.texts("texts")[0].inputs.getValue("x") as Values.Ints).array
            suspend fun inferred(tokens: Int) =
                (trainer.infer(listOf(mapOf("x" to Values.Ints(text.copyOf(tokens)))))[0].getValue("output") as Values.Floats).array
            val whole = inferred(12).toList()
            for (tokens in listOf(1, 4, 5, 8, 11)) {
                val some = inferred(tokens).toList()
                assertEquals(whole.size / 12 * tokens, some.size)
                for (i in some.indices) assertTrue(abs(whole[i] - some[i]) < 1e-4)
            }
            assertFailsWith<RuntimeFailedException> { trainer.infer(listOf(mapOf("x" to Values.Ints(intArrayOf(1, 96))))) }
        }
    }

    @Tag("every-version")
    @ParameterizedTest
    @CsvSource(
        "mlp,variables", "mlp,stateless", "cnn,variables", "cnn,stateless", "two,stateless", "cnn-by-4,variables",
    )
    fun `the exported model is the host's to the byte, and infers the same`(model: String, export: String): Unit =
        runBlocking {
            val plain = File(folder, "plain.tflite")
            Fixture.trainer(Fixture.program("$model-$export"), Store(folder)).use { trainer ->
                trainer.restore(Fixture.file("$model.state"))
                trainer.exportInference(plain)
                assertContentEquals(Fixture.file("$model.plain").readBytes(), plain.readBytes())
                val rows = trainer.program.manifest.microBatch
                val expected = trainer.infer(Fixture.samples(model).take(rows).map { it.inputs })
                for ((name, found) in inferred(plain, Fixture.floats("$model.x").take(36 * rows))) {
                    val sameName = expected.flatMap { (it.getValue(name) as Values.Floats).array.toList() }
                    assertEquals(sameName, found)
                }
            }
            assertEquals(listOf("plain.tflite"), folder.list()?.toList())
        }

    @Test
    fun `of a file the exported model is the host's to the byte`(): Unit = runBlocking {
        val plain = File(folder, "plain.tflite")
        Fixture.trainer(Fixture.program("filed-stateless"), Store(folder)).use { trainer ->
            trainer.restore(Fixture.file("filed.state"))
            trainer.exportInference(plain)
        }
        assertContentEquals(Fixture.file("filed.plain").readBytes(), plain.readBytes())
    }

    @Test
    fun `of weights in int8 the exported model has the numbers that they stand for, to the byte`(): Unit = runBlocking {
        val plain = File(folder, "plain.tflite")
        Fixture.trainer(Fixture.program("int8"), Store(folder)).use { trainer ->
            trainer.restore(Fixture.file("trace-weights-in-int8.state"))
            trainer.exportInference(plain)
        }
        assertContentEquals(Fixture.file("int8.plain").readBytes(), plain.readBytes())
    }

    @Tag("every-version")
    @Test
    fun `a model that is hard to resize takes any number of rows when it was exported`(): Unit = runBlocking {
        val plain = File(folder, "plain.tflite")
        Fixture.trainer(Fixture.program("rows"), Store(folder)).use { trainer ->
            trainer.restore(Fixture.file("rows.state"))
            trainer.exportInference(plain)
        }
        assertContentEquals(Fixture.file("rows.plain").readBytes(), plain.readBytes())
        val (x, expected) = listOf("rows.x", "rows.output").map(Fixture::floats)
        for (count in listOf(1, 2, 3, 6)) {
            val found = inferred(plain, x.take(x.size / 6 * count)).values.single()
            assertClose(expected.take(expected.size / 6 * count), found)
        }
    }

    @Tag("every-version")
    @ParameterizedTest
    @CsvSource("float16,0.003", "dynamic,0.05")
    fun `the library runs models with smaller weights`(quantize: String, error: Float) {
        Fixture.natives
        val expected = Fixture.floats("wide.output")
        val found = inferred(Fixture.file("wide.$quantize"), Fixture.floats("wide.x")).values.single()
        val worst = expected.indices.maxOf { abs(expected[it] - found[it]) }
        assertTrue(worst < error * expected.maxOf { abs(it) }, "off by $worst")
    }

    /** What the library alone makes of a plain model, by output. */
    private fun inferred(plain: File, x: List<Float>): Map<String, List<Float>> =
        Interpreter(plain, Interpreter.Options().setUseXNNPACK(true)).use { interpreter ->
            assertEquals(listOf("infer"), interpreter.signatureKeys.toList())
            val row = interpreter.getInputTensorFromSignature("x", "infer").shape().drop(1)
            val rows = x.size / row.fold(1, Int::times)
            interpreter.resizeInput(0, intArrayOf(rows, *row.toIntArray()))
            interpreter.allocateTensors()
            // Of an output whose rows are counted at run time the library knows one row until then.
            val buffers = interpreter.getSignatureOutputs("infer").associateWith {
                val shape = interpreter.getOutputTensorFromSignature(it, "infer").shape()
                direct(rows * shape.drop(1).fold(1, Int::times))
            }
            val input = direct(x.size).apply { asFloatBuffer().put(x.toFloatArray()) }
            interpreter.runSignature(mapOf("x" to input), buffers.toMap(), "infer")
            buffers.mapValues { (_, buffer) ->
                buffer.clear()
                buffer.asFloatBuffer().let { b -> List(b.limit()) { b.get(it) } }
            }
        }

    private fun direct(numbers: Int) = ByteBuffer.allocateDirect(4 * numbers).order(ByteOrder.nativeOrder())

    @Tag("every-version")
    @ParameterizedTest
    @CsvSource("variables,true", "variables,false", "stateless,true", "stateless,false")
    fun `it chooses the channels of the host, and trains them as the host does`(export: String, xnnpack: Boolean): Unit =
        runBlocking {
            val samples = Fixture.samples("mlp")
            val factory = TfliteRuntimeFactory(xnnpack = xnnpack)
            Fixture.trainer(Fixture.program("chosen-$export"), Store(folder), factory).use { trainer ->
                val chosen = trainer.chooseChannels(samples)
                assertEquals(mapOf("a/w" to Fixture.ints("chosen.channels")), chosen.mapValues { it.value.toList() })
                val steps = trainer.fit(samples, Fixture.asOnTheHost).filterIsInstance<TrainEvent.Step>().toList()
                assertClose(Fixture.floats("chosen.losses"), steps.map { it.loss })
                val refused = assertFailsWith<InputException> { trainer.chooseChannels(samples) }
                assertTrue("has begun" in refused.message.orEmpty())
                val again = trainer.chooseChannels(samples, reset = true)
                assertEquals(chosen.mapValues { it.value.toList() }, again.mapValues { it.value.toList() })
                assertEquals(1, trainer.restore(Fixture.file("chosen.state")).generation)
                assertFailsWith<DamagedStateException> { trainer.restore(Fixture.file("beyond.state")) }
            }
        }

    @Test
    fun `the host takes a state of ours`(): Unit = runBlocking {
        val python = File(System.getProperty("programs"), "../../../.venv/bin/python")
        assumeTrue(python.canExecute(), "needs the Python environment of scripts/setup")
        val states = listOf("variables", "stateless").map { export ->
            Fixture.trainer(Fixture.program("mlp-$export"), Store(File(folder, export))).use { trainer ->
                trainer.fit(Fixture.samples("mlp"), Fixture.asOnTheHost).collect {}
            }
            "$folder/$export/personal.state"
        }
        val script = File(System.getProperty("programs"), "../../check_state.py")
        val files = listOf("mlp-variables.tflite", "mlp.trained").map { Fixture.file(it).path }
        val process = ProcessBuilder(listOf(python.path, script.path) + files + states).redirectError(File(folder, "log")).start()
        assertTrue(process.waitFor(60, TimeUnit.SECONDS))
        assertTrue(process.inputStream.bufferedReader().readText().trim().toDouble() < TOLERANCE, File(folder, "log").readText())
    }

    @Tag("every-version")
    @ParameterizedTest
    @ValueSource(strings = ["mlp", "cnn"])
    fun `inference is the same, for any number of rows`(model: String): Unit = runBlocking {
        Fixture.trainer(Fixture.program("$model-stateless"), Store(folder)).use { trainer ->
            for (count in listOf(8, 1, 3)) {
                val rows = trainer.infer(Fixture.samples(model).take(count).map { it.inputs })
                val found = rows.flatMap { (it.getValue("output") as Values.Floats).array.toList() }
                assertClose(Fixture.floats("$model.output").take(4 * count), found)
            }
        }
    }

    /** All numbers of a state file, without its header. */
    private fun data(state: File): List<Float> {
        val bytes = ByteBuffer.wrap(state.readBytes()).order(ByteOrder.LITTLE_ENDIAN)
        bytes.position((48 + bytes.getInt(12) + 63) / 64 * 64)
        val floats = bytes.slice().order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
        return List(floats.limit()) { floats.get(it) }
    }
}
