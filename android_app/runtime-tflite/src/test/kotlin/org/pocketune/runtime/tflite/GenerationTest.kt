package org.pocketune.runtime.tflite

import java.io.File
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotEquals
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.double
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Tag
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import org.pocketune.trainer.BusyException
import org.pocketune.trainer.ClosedException
import org.pocketune.trainer.InputException
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Sample
import org.pocketune.trainer.Sampling
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Values

/** A language model writes texts on. */
class GenerationTest {
    @TempDir lateinit var folder: File

    private val told = Told()

    private suspend fun trainer(export: String = "variables") =
        Fixture.trainer(Fixture.program("generation-$export"), Store(folder))

    @Tag("every-version")
    @ParameterizedTest
    @ValueSource(strings = ["variables", "stateless", "lengths"])
    fun `the likeliest tokens are those of the host, before and after a training`(export: String): Unit = runBlocking {
        trainer(export).use { trainer ->
            assertEquals(told.before, told.prompts.map { trainer.generate(it, most = 10).toList() })
            trainer.fit(listOf(told.sample), told.plan).toList()
            assertEquals(told.after, told.prompts.map { trainer.generate(it, most = 10).toList() })
        }
    }

    @Test
    fun `two texts do not disturb one another, nor a training, whose weights they are written with`(): Unit = runBlocking {
        trainer().use { trainer ->
            var steps = 0
            trainer.fit(listOf(told.sample), told.plan).collect { event ->
                if (event !is TrainEvent.Step) return@collect
                if (steps++ == 0) assertNotEquals(told.after, told.prompts.map { trainer.generate(it, most = 10).toList() })
                assertFailsWith<BusyException> { trainer.save() }
            }
            val both = trainer.generate(told.prompts[1], most = 4).let { first ->
                val inner = ArrayList<List<Int>>()
                val outer = ArrayList<Int>()
                first.collect { outer += it; inner += trainer.generate(told.prompts[3], most = 3).toList() }
                outer to inner
            }
            assertEquals(told.after[1].take(4), both.first)
            assertEquals(List(4) { told.after[3].take(3) }, both.second)
        }
    }

    @Test
    fun `it ends at a stop, at the end of the row, when nobody collects, and when the trainer is closed`(): Unit = runBlocking {
        trainer().use { trainer ->
            val (prompt, written) = told.prompts[1] to told.before[1]
            val at = written.withIndex().first { (i, id) -> i > 0 && id !in written.take(i) }
            assertEquals(written.take(at.index), trainer.generate(prompt, most = 10, stop = setOf(at.value)).toList())
            assertEquals(1, trainer.generate(told.prompts.last(), most = 10).toList().size)
            assertEquals(emptyList(), trainer.generate(prompt, most = 0).toList())
            assertEquals(written[0], trainer.generate(prompt).first())
            assertFailsWith<ClosedException> { trainer.generate(prompt).collect { trainer.close() } }
        }
    }

    @Test
    fun `a seed gives the same draws, and few draws are of the likeliest`(): Unit = runBlocking {
        trainer().use { trainer ->
            suspend fun drawn(sampling: Sampling) = trainer.generate(told.prompts[0], most = 40, sampling = sampling).toList()
            val hot = Sampling(temperature = 3.0, topK = 96, topP = 1.0, seed = 1)
            assertEquals(drawn(hot), drawn(hot))
            assertNotEquals(drawn(hot), drawn(hot.copy(seed = 2)))
            val likeliest = drawn(Sampling())
            assertEquals(likeliest, drawn(hot.copy(topK = 1)))
            assertEquals(likeliest, drawn(hot.copy(topP = 1e-9)))
        }
    }

    @Test
    fun `a seed draws what it draws in a page`(): Unit = runBlocking {
        trainer().use { trainer ->
            trainer.fit(listOf(told.sample), told.plan).toList()
            for ((sampling, text) in told.drawn) {
                assertEquals(text, trainer.generate(told.prompts[0], most = 40, sampling = sampling).toList())
            }
        }
    }

    @Test
    fun `what cannot be written on is refused in words`(): Unit = runBlocking {
        trainer().use { trainer ->
            for ((ids, words) in listOf(
                intArrayOf() to "there are none", IntArray(49) to "a row of this program holds 48",
                intArrayOf(1, 96) to "96 is no number from 0 to 95", intArrayOf(-1) to "-1 is no number",
            )) assertContains(words) { trainer.generate(ids).toList() }
            for (sampling in listOf(Sampling(temperature = -1.0), Sampling(Double.NaN), Sampling(topK = 0), Sampling(topP = 0.0))) {
                assertContains("topK 1 or more") { trainer.generate(intArrayOf(1), sampling = sampling).toList() }
            }
        }
        Fixture.trainer(Fixture.program("mlp-lean"), Store(File(folder, "other"))).use {
            assertContains("train,infer,generate") { it.generate(intArrayOf(1)).toList() }
        }
    }

    private suspend fun assertContains(words: String, work: suspend () -> Unit) {
        val message = assertFailsWith<InputException> { work() }.message.orEmpty()
        assert(words in message) { message }
    }
}

/** What the host wrote. */
private class Told {
    private val contents = Json.parseToJsonElement(Fixture.file("generation.json").readText()).jsonObject
    private val rows = texts("rows")
    val before = texts("before")
    val after = texts("after")
    val drawn = contents.getValue("drawn").jsonArray.map { it.jsonObject }.map { each ->
        val how = each.getValue("sampling").jsonObject
        fun number(name: String) = how.getValue(name).jsonPrimitive.double
        val sampling = Sampling(number("temperature"), number("topK").toInt(), number("topP"), number("seed").toLong())
        sampling to each.getValue("text").jsonArray.map { it.jsonPrimitive.int }
    }
    val prompts = contents.getValue("sizes").jsonArray.map { it.jsonPrimitive.int }
        .zip(rows) { size, row -> row.take(size).toIntArray() }
    val plan = Plan(epochs = 8, learningRate = LearningRate.Constant(0.05f), shuffle = false, checkpointEvery = 0)
    val sample = rows[0].let { row ->
        Sample(mapOf("x" to Values.Ints(row.toIntArray())), Values.Ints((row.drop(1) + row[0]).toIntArray()))
    }

    private fun texts(name: String): List<List<Int>> =
        contents.getValue(name).jsonArray.map { text -> text.jsonArray.map { it.jsonPrimitive.int } }
}
