package org.pocketune.runtime.tflite

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.abs
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.doubleOrNull
import kotlinx.serialization.json.float
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory
import org.junit.jupiter.api.io.TempDir
import org.pocketune.trainer.EarlyStop
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Sample
import org.pocketune.trainer.SkipLearned
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent

/** Trainings of the host (android_app/recorded_traces.py), done again: what is told on the way, and the state after. */
class TraceTest {
    @TempDir lateinit var folder: File

    private val traces = Json.parseToJsonElement(Fixture.file("traces.json").readText()).jsonObject

    @Test
    fun `there is a dozen of trainings`() = assertTrue(traces.size >= 12)

    @TestFactory
    fun `a training of the host is done again`() = traces.map { (name, trace) ->
        DynamicTest.dynamicTest(name) { replay(name, trace.jsonObject) }
    }

    private fun replay(name: String, trace: JsonObject): Unit = runBlocking {
        val own = File(folder, name).apply { mkdir() }
        val program = Fixture.program(trace.text("program"), trace.getValue("head").jsonPrimitive.contentOrNull)
        Fixture.trainer(program, Store(own)).use { trainer ->
            val events = trainer.fit(samples(trace, "rows").orEmpty(), plan(trace), samples(trace, "held_out").orEmpty())
            val found = events.toList().mapNotNull(::told)
            val expected = trace.getValue("events").jsonArray.map { it.jsonObject }
            assertEquals(expected.map { it.text("kind") }, found.map { it["kind"] })
            for ((i, event) in expected.withIndex()) {
                for ((key, value) in event) assertClose("event $i, $key", value.jsonPrimitive, found[i][key])
            }
        }
        val expected = numbers(Fixture.file("trace-$name.state"))
        val state = numbers(File(own, "personal.state"))
        assertEquals(expected.size, state.size)
        for (i in expected.indices) assertTrue(abs(expected[i] - state[i]) < TOLERANCE, "number $i of the state")
    }

    private fun plan(trace: JsonObject): Plan {
        val seed = trace["seed"]?.jsonPrimitive?.takeUnless { it.contentOrNull == null }?.long
        val patience = trace.number("patience")?.toInt()
        return Plan(
            epochs = trace.getValue("epochs").jsonPrimitive.int,
            learningRate = trace.number("learning_rate")?.let { LearningRate.Constant(it.toFloat()) },
            shuffle = seed != null,
            seed = seed ?: 0,
            earlyStop = patience?.let { EarlyStop(it) },
            skip = (trace["skip"] as? JsonArray)?.let { (below, revisit) ->
                SkipLearned(below.jsonPrimitive.float, revisit.jsonPrimitive.int)
            },
            redraw = trace.getValue("redraw").jsonPrimitive.boolean,
            rateScale = trace.number("rate_scale")?.toFloat() ?: 1f,
        )
    }

    private fun samples(trace: JsonObject, which: String): List<Sample>? {
        val (first, end) = (trace[which] as? JsonArray)?.map { it.jsonPrimitive.int } ?: return null
        val (data, fed) = trace.text("data") to trace.text("fed")
        val samples = when (fed) {
            "float32" -> Fixture.samples(data)
            "int32" -> Fixture.texts(data)
            else -> Fixture.samples(data, fed)
        }
        return samples.subList(first, end)
    }

    /** What the host tells too, of one event. */
    private fun told(event: TrainEvent): Map<String, Any?>? = when (event) {
        is TrainEvent.Started -> mapOf("kind" to "started", "epochs" to event.epochs, "steps" to event.steps)
        is TrainEvent.Skipped ->
            mapOf("kind" to "skipped", "epoch" to event.epoch, "rows" to event.rows, "of" to event.of)
        is TrainEvent.Step ->
            mapOf("kind" to "step", "epoch" to event.epoch, "step" to event.step, "loss" to event.loss)
        is TrainEvent.Evaluated -> mapOf(
            "kind" to "evaluated",
            "epoch" to event.epoch,
            "isBest" to event.isBest,
            "loss" to event.evaluation.loss,
            "accuracy" to event.evaluation.accuracy,
        )
        is TrainEvent.Finished -> mapOf("kind" to "finished", "stoppedEarly" to event.stoppedEarly)
        else -> null
    }

    private fun assertClose(where: String, expected: JsonPrimitive, found: Any?) {
        val number = expected.doubleOrNull.takeUnless { expected.isString }
        if (number == null || found !is Number) return assertEquals(expected.content, found.toString(), where)
        assertTrue(abs(number - found.toDouble()) < TOLERANCE, "$where: $found, and the host has $number")
    }

    /** All numbers of a state file, tensor by tensor. */
    private fun numbers(state: File): List<Float> {
        val bytes = ByteBuffer.wrap(state.readBytes()).order(ByteOrder.LITTLE_ENDIAN)
        val header = Json.parseToJsonElement(String(bytes.array(), 48, bytes.getInt(12))).jsonObject
        val start = (48 + bytes.getInt(12) + 63) / 64 * 64
        return header.getValue("tensors").jsonArray.map { it.jsonObject }.flatMap { tensor ->
            val (offset, size) = listOf("offset", "nbytes").map { tensor.getValue(it).jsonPrimitive.int }
            when (tensor.text("dtype")) {
                "int8" -> List(size) { bytes.get(start + offset + it).toFloat() }
                "int32" -> List(size / 4) { bytes.getInt(start + offset + 4 * it).toFloat() }
                else -> List(size / 4) { bytes.getFloat(start + offset + 4 * it) }
            }
        }
    }

    private fun JsonObject.text(key: String): String = getValue(key).jsonPrimitive.content

    private fun JsonObject.number(key: String): Double? = (get(key) as JsonElement).jsonPrimitive.doubleOrNull
}
