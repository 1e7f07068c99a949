package org.pocketune.federated

import java.io.File
import kotlin.math.abs
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.double
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.long
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.LabelledOutput
import org.pocketune.trainer.Program
import org.pocketune.trainer.Sample
import org.pocketune.trainer.Store
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.tensors

/** A round in Android's own library on this JVM, against what the client in Python answered. */
class ParticipantTest {
    @TempDir lateinit var folder: File

    private val program by lazy {
        loadAndroid()
        Program.open(File(Recorded.folder, "program.tflite"))
    }

    @Test
    fun `identity, arrays and the norm's bound are the host's`() {
        val exchange = Exchange(program)
        assertEquals(Recorded.expected.getValue("identity").jsonPrimitive.content, exchange.identity)
        val labelled = program.manifest.copy(labels = listOf("a", "ü", "c"))
        assertEquals(Recorded.expected.getValue("labelled").jsonPrimitive.content, labelled.federatedIdentity())
        val parameters = exchange.trained.keys.toList()
        val own = labelled.copy(labelled = listOf(LabelledOutput("logits", 0, parameters)))
        assertEquals(exchange.identity, own.federatedIdentity(parameters.toSet()))
        assertEquals(labelled.federatedIdentity(), own.federatedIdentity(parameters.drop(1).toSet()))
        assertEquals(Recorded.expected.getValue("norm").jsonPrimitive.double, exchange.norm, 1e-9)
        assertEquals(Recorded.expected.getValue("bytes").jsonPrimitive.long, exchange.bytes(withSlots = false))
        assertEquals(Recorded.built.mapValues { it.value.shape }, exchange.trained.mapValues { it.value.shape })
    }

    @Test
    fun `a round gives the arrays and figures of Python's client`(): Unit = runBlocking {
        participant().use { participant ->
            val (tree, objects) = Recorded.pushed[0]
            val wanted = Incoming(objects, 1L shl 20).message(tree.objectId).second.arrays.getValue("arrays")
            val trained = participant.train(Recorded.built, config(), rows(), emptyMap())
            assertEquals(wanted.keys.toList(), trained.arrays.keys.toList())
            for ((name, array) in wanted) assertClose(array, trained.arrays.getValue(name))
            assertTrue(wanted.any { (name, array) -> array.numbers.zip(Recorded.built.getValue(name).numbers).any { (a, b) -> abs(a - b) > 1e-3 } })
            assertEquals(setOf("num-examples", "loss", "seconds"), trained.figures.keys)
            assertEquals(20, trained.figures["num-examples"])
            assertEquals(setOf("num-examples", "loss", "accuracy", "seconds"), participant.evaluate(wanted, config(), rows(), emptyMap()).keys)
        }
    }

    @Test
    fun `a server that asks for clipping gets a change of this norm and the same direction`(): Unit = runBlocking {
        participant().use { participant ->
            val whole = participant.train(Recorded.built, config(), rows(), emptyMap()).arrays
            val cut = participant.train(Recorded.built, config() + ("clipping_norm" to 0.01), rows(), emptyMap()).arrays
            fun changes(arrays: Map<String, Tensor>) = arrays.flatMap { (name, array) ->
                array.numbers.zip(Recorded.built.getValue(name).numbers) { after, before -> (after - before).toDouble() }
            }
            val norm = kotlin.math.sqrt(changes(whole).sumOf { it * it })
            assertTrue(norm > 0.1)
            changes(whole).zip(changes(cut)).forEach { (change, small) -> assertEquals(change * 0.01 / norm, small, 1e-6) }
            val far = participant.train(Recorded.built, config() + ("clipping_norm" to 1e6), rows(), emptyMap()).arrays
            for ((name, array) in whole) assertEquals(array.numbers.toList(), far.getValue(name).numbers.toList())
            assertFailsWith<RefusedRoundException> { participant.train(Recorded.built, config() + ("clipping_norm" to -1.0), rows(), emptyMap()) }
        }
    }

    @Test
    fun `steps end a round, and the rounds after it have other orders`(): Unit = runBlocking {
        participant().use { participant ->
            suspend fun round(vararg more: Pair<String, Any>) = participant.train(Recorded.built, config() + more, rows(), emptyMap()).arrays.getValue("head/w").numbers.toList()
            val first = round()
            assertEquals(first, round())
            assertEquals(round("epochs" to 1L), round("epochs" to 2L, "steps" to 3L))
            assertTrue(first != round("server-round" to 2L))
            assertTrue(first != round("steps" to 1L))
        }
    }

    @Test
    fun `what does not fit is refused, and the next round is none the worse`(): Unit = runBlocking {
        participant(Bounds(epochs = 3, learningRate = 0.5)).use { participant ->
            suspend fun refused(arrays: Map<String, Tensor> = Recorded.built, config: Map<String, Any> = config()) =
                assertFailsWith<RefusedRoundException> { participant.train(arrays, config, rows(), emptyMap()) }.message!!
            fun with(name: String, tensor: Tensor) = Recorded.built + (name to tensor)
            assertContains(refused(config = config() - "program"), "names no program")
            assertContains(refused(config = config() + ("program" to "f".repeat(64))), "both need the same build")
            assertContains(refused(config = config() + ("epochs" to 4L)), "allows 1 to 3")
            assertContains(refused(config = config() + ("epochs" to 2.0)), "a whole number")
            assertContains(refused(config = config() + ("learning-rate" to 0.6)), "allows 0.0 to 0.5")
            assertContains(refused(config = config() + ("learning-rate" to Double.NaN)), "a number")
            assertContains(refused(config = config() + ("seed" to true)), "a whole number")
            assertContains(refused(config = config() + ("seeds" to 1L)), "not known")
            assertContains(refused(config = config() + ("proximal-mu" to 0.1)), "without it")
            assertContains(refused(Recorded.built - "head/b"), "did not send head/b")
            assertContains(refused(with("body", Tensor(listOf(1), FloatArray(1)))), "does not train")
            assertContains(refused(with("head/b", Tensor(listOf(1, 3), FloatArray(3)))), "and is [3]")
            assertContains(refused(with("head/b", Tensor(listOf(3), floatArrayOf(0f, Float.NaN, 0f)))), "NaN")
            assertContains(refused(with("head/b", Tensor(listOf(3), floatArrayOf(0f, 100f, 0f)))), "a norm of 100")
            participant.train(Recorded.built, config(), rows(), emptyMap())
        }
    }

    @Test
    fun `the user's state is touched when the user says so`(): Unit = runBlocking {
        val mine = Trainer.open(program, TfliteRuntimeFactory(), Store(File(folder, "mine")))
        val (before, shared) = mine.tensors() to Recorded.built.mapValues { (_, it) -> Tensor(it.shape, FloatArray(it.numbers.size) { 0.25f }) }
        mine.use { trainer ->
            participant().use { participant ->
                participant.train(shared, config(), rows(), emptyMap())
                assertEquals(before, trainer.tensors())
                assertNull(trainer.adopt(participant.shared, Take.MINE))
                assertEquals(before, trainer.tensors())
                assertEquals(1, trainer.adopt(participant.shared, Take.BOTH) { it == "head/b" })
                assertEquals(listOf(listOf(0f, 0f, 0f), List(12) { 0.25f }), numbers(trainer))
                assertEquals(2, trainer.adopt(participant.shared, Take.SHARED))
                assertEquals(listOf(List(3) { 0.25f }, List(12) { 0.25f }), numbers(trainer))
                trainer.rollback()
                assertEquals(listOf(0f, 0f, 0f), numbers(trainer)[0])
            }
        }
    }

    private suspend fun numbers(trainer: Trainer): List<List<Float>> =
        Exchange(program).sent(trainer.tensors(), withSlots = false).toSortedMap().values.map { it.numbers.toList() }

    private suspend fun participant(bounds: Bounds = Bounds()) =
        Participant.open(program, TfliteRuntimeFactory(), File(folder, "federated"), bounds)

    private fun config(): Map<String, Any> =
        mapOf("program" to Exchange(program).identity, "epochs" to 2L, "learning-rate" to 0.1, "server-round" to 1L)

    private fun rows(): List<Sample> = Recorded.rows

    private fun assertClose(wanted: Tensor, found: Tensor) {
        assertEquals(wanted.shape, found.shape)
        for ((a, b) in wanted.numbers.zip(found.numbers)) assertEquals(a, b, 1e-5f)
    }
}
