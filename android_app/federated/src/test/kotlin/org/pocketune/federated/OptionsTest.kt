package org.pocketune.federated

import java.io.File
import java.nio.ByteBuffer
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.boolean
import kotlinx.serialization.json.double
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.InputException
import org.pocketune.trainer.Program
import org.pocketune.trainer.StateException
import org.pocketune.trainer.Store
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.tensors

/** Tensors that stay, slots that travel and FedProx's term, against what the client in Python did (`tests/federated/options.py`). */
class OptionsTest {
    @TempDir lateinit var folder: File

    private val recorded = Json.parseToJsonElement(File(Recorded.folder, "options.json").readText()).jsonObject
    private val head = listOf("head/*")
    private val program by lazy {
        loadAndroid()
        Program.open(File(Recorded.folder, "options.tflite"))
    }

    @Test
    fun `rounds are those of Python's client`(): Unit = runBlocking {
        val cases = recorded.getValue("cases").jsonObject
        assertEquals(10, cases.size)
        for ((called, case) in cases) round(called, case.jsonObject)
    }

    private suspend fun round(called: String, wanted: JsonObject) {
        val patterns = wanted.getValue("personal").jsonArray.map { it.jsonPrimitive.content }
        participant(patterns, called).use { participant ->
            val exchange = participant.exchange
            assertEquals(wanted.getValue("bytes").jsonPrimitive.long, participant.bytes, called)
            assertEquals(1.0, exchange.norm / wanted.getValue("norm").jsonPrimitive.double, 1e-6, called)
            val own = Recorded.tensors(wanted.getValue("own"))
            assertEquals(own.keys, participant.personal, called)
            val sent = Recorded.tensors(wanted.getValue("sent"))
            var (arrays, kept) = sent to emptyMap<String, ByteBuffer>()
            var (loss, judged) = 0.0 to 0.0
            wanted.getValue("rounds").jsonArray.forEachIndexed { k, more ->
                val config = config(participant, k + 1) + more.jsonObject.mapValues { (name, value) ->
                    if (name == "steps") value.jsonPrimitive.long else value.jsonPrimitive.double
                }
                val trained = participant.train(arrays, config, Recorded.rows, kept)
                arrays = trained.arrays
                kept = trained.kept
                loss = trained.figures.getValue("loss").toDouble()
                judged = participant.evaluate(arrays, config, Recorded.rows, kept).getValue("loss").toDouble()
            }
            assertClose(Recorded.tensors(wanted.getValue("arrays")), arrays, called)
            assertTrue(arrays.any { (name, array) -> !array.numbers.contentEquals(sent.getValue(name).numbers) })
            assertClose(own, mine(participant, kept), called)
            assertEquals(wanted.getValue("loss").jsonPrimitive.double, loss, 1e-4, called)
            assertEquals(wanted.getValue("judged").jsonPrimitive.double, judged, 1e-4, called)
        }
    }

    @Test
    fun `what is personal stays, is kept for the next process, and is taken over with the base of the others`(): Unit = runBlocking {
        val sent = sent("a personal head")
        val (mine, moved) = participant(head).use { participant ->
            assertFalse(participant.own.exists())
            val trained = participant.train(sent, config(participant, 1), Recorded.rows, emptyMap())
            assertTrue(participant.own.exists())
            mine(participant, trained.kept) to
                trained.arrays.mapValues { (_, it) -> Tensor(it.shape, FloatArray(it.numbers.size) { i -> it.numbers[i] + 1 }) }
        }
        participant(head).use { participant ->
            participant.evaluate(moved, config(participant, 1), Recorded.rows, emptyMap())
            Trainer.open(program, TfliteRuntimeFactory(), Store(File(folder, "mine"))).use { trainer ->
                trainer.restore(participant.shared)
                assertClose(moved, participant.exchange.sent(trainer.tensors(), withSlots = false), most = 0f)
                assertClose(mine, mine(participant, trainer.tensors()), most = 0f)
                trainer.restore(participant.own)
                assertClose(mine, mine(participant, trainer.tensors()), most = 0f)
                trainer.reset()
                val built = mine(participant, trainer.tensors())
                trainer.adopt(participant.shared, Take.BOTH) { it in participant.personal }
                assertClose(moved, participant.exchange.sent(trainer.tensors(), withSlots = false), most = 0f)
                assertClose(built, mine(participant, trainer.tensors()), most = 0f)
            }
        }
    }

    @Test
    fun `a head that the app exported is what a participant begins with`(): Unit = runBlocking {
        val file = File(folder, "exported.state")
        val mine = participant(head, "first").use { first ->
            val kept = first.train(sent("a personal head"), config(first, 1), Recorded.rows, emptyMap()).kept
            first.own.copyTo(file)
            mine(first, kept)
        }
        Participant.open(program, TfliteRuntimeFactory(), File(folder, "second"), personal = head, own = file).use { second ->
            second.evaluate(sent("a personal head"), config(second, 1), Recorded.rows, emptyMap())
            Trainer.open(program, TfliteRuntimeFactory(), Store(File(folder, "mine"))).use {
                it.restore(second.shared)
                assertClose(mine, mine(second, it.tensors()), most = 0f)
            }
        }
    }

    @Test
    fun `classes that were added to a personal layer stay with their names`(): Unit = runBlocking {
        loadAndroid()
        val room = Program.open(File(Recorded.folder, "room.tflite"))
        val wanted = recorded.getValue("room").jsonObject
        val sent = Recorded.tensors(wanted.getValue("sent"))
        val file = File(folder, "own.state")
        suspend fun open(vararg personal: String) =
            Participant.open(room, TfliteRuntimeFactory(), File(folder, "room"), personal = personal.toList(), own = file)
        Trainer.open(room, TfliteRuntimeFactory(), Store(File(folder, "mine"))).use { trainer ->
            trainer.addClass("mine")
            val names = listOf("0", "1", "mine", null)
            trainer.export(file)
            open("head/*").use { participant ->
                val config = mapOf("program" to participant.identity, "learning-rate" to 0.5)
                suspend fun judged(arrays: Map<String, Tensor>) =
                    participant.evaluate(arrays, config, Recorded.rows, emptyMap()).getValue("loss").toDouble()
                assertEquals(wanted.getValue("before").jsonPrimitive.double, judged(sent), 1e-4)
                val byLabels = room.manifest.federatedIdentity() // of a server that does not know what is personal
                assertNotEquals(participant.identity, byLabels)
                val trained = participant.train(sent, config + ("program" to byLabels), Recorded.rows, emptyMap())
                assertEquals(wanted.getValue("after").jsonPrimitive.double, judged(trained.arrays), 1e-4)
            }
            trainer.addClass("another")
            trainer.adopt(File(folder, "room/shared.state"), Take.BOTH) { it.startsWith("head/") }
            assertEquals(listOf("0", "1", "mine", "another"), trainer.classes())
            trainer.adopt(File(folder, "room/shared.state"), Take.SHARED)
            assertEquals(names, trainer.classes())
            trainer.restore(file)
            assertEquals(names, trainer.classes())
            assertFailsWith<InputException> { trainer.adopt(file, Take.BOTH) { it == "head/b" } }
            assertEquals(names, trainer.classes())
        }
        val half = assertFailsWith<InputException> { open("head/w") }.message!!
        assertContains(half, "head/w stays here and the rest of the last layer does not")
    }

    @Test
    fun `a server of other patterns is refused, and so are patterns that leave nothing`(): Unit = runBlocking {
        suspend fun refused(participant: Participant, arrays: Map<String, Tensor>) =
            assertFailsWith<RefusedRoundException> { participant.train(arrays, config(participant, 1), Recorded.rows, emptyMap()) }.message!!
        participant(head).use { participant ->
            assertContains(refused(participant, sent("slots at home")), "'head/b', which is personal here and stays: both need the same patterns")
            assertFalse(participant.own.exists() || participant.shared.exists())
        }
        participant(emptyList()).use { assertContains(refused(it, sent("a personal head")), "did not send head/b and 1 others") }
        fun none(vararg patterns: String) = assertFailsWith<InputException> { runBlocking { participant(patterns.toList()) } }.message!!
        assertContains(none("haed/*"), "'haed/*' matches no trained tensor. Trained are head/b, head/w, next/w")
        assertContains(none("head/*", "next/w"), "match all that trains, so nothing is shared")
    }

    @Test
    fun `states of another program, as before an update of the app, are replaced where they are the server's alone`(): Unit = runBlocking {
        val other = Program.open(File(Recorded.folder, "program.tflite"))
        File(folder, "federated").mkdirs()
        Trainer.open(other, TfliteRuntimeFactory(), Store(File(folder, "other"))).use { trainer ->
            repeat(2) { trainer.export(File(folder, "federated/shared.state")) }
            trainer.export(File(folder, "federated/own.state"))
        }
        participant(emptyList()).use { it.train(sent("slots at home"), config(it, 1), Recorded.rows, emptyMap()) }
        assertFailsWith<StateException> { participant(head) }
        participant(emptyList()).use { participant ->
            Trainer.open(program, TfliteRuntimeFactory(), Store(File(folder, "mine"))).use { it.restore(participant.shared) }
        }
    }

    @Test
    fun `patterns match what Python's match`() {
        val matches = recorded.getValue("patterns").jsonArray.map { it.jsonArray }
        assertTrue(matches.size > 300)
        for ((pattern, name, isMatch) in matches.map { list -> list.map { it.jsonPrimitive } }) {
            assertEquals(isMatch.boolean, regexOf(pattern.content).matches(name.content), "${pattern.content} ${name.content}")
        }
    }

    private fun sent(case: String) = Recorded.tensors(recorded.getValue("cases").jsonObject.getValue(case).jsonObject.getValue("sent"))

    private fun mine(participant: Participant, state: Map<String, ByteBuffer>): Map<String, Tensor> =
        participant.exchange.personal.mapValues { (_, one) -> one.sent(state.getValue(one.tensor)) }

    private fun config(participant: Participant, number: Int): Map<String, Any> =
        mapOf("program" to participant.identity, "epochs" to 2L, "learning-rate" to 0.05, "server-round" to number.toLong())

    private suspend fun participant(personal: List<String>, name: String = "federated") =
        Participant.open(program, TfliteRuntimeFactory(), File(folder, name), personal = personal)

    private fun assertClose(wanted: Map<String, Tensor>, found: Map<String, Tensor>, said: String = "", most: Float = 1e-5f) {
        assertEquals(wanted.keys.toList(), found.keys.toList(), said)
        for ((name, array) in wanted) {
            assertEquals(array.shape, found.getValue(name).shape, said)
            for ((a, b) in array.numbers.zip(found.getValue(name).numbers)) assertEquals(a, b, most, "$said: $name")
        }
    }
}
