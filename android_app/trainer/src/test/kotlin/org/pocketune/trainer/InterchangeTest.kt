package org.pocketune.trainer

import java.io.File
import java.nio.ByteBuffer
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** A user's state goes on in every build of the same model, and in no other one without a word: as on the host. */
class InterchangeTest {
    @TempDir lateinit var folder: File

    /** A program and a state, and what the host makes of them; [tensors] is a state file of what is taken over. */
    @Serializable
    private class Verdict(
        val program: String,
        val state: String,
        val differences: List<String>,
        val adopted: List<String>,
        val left: List<String>,
        val proven: Boolean,
        val refused: Boolean,
        val tensors: String,
    )

    private val verdicts = Json.decodeFromString<List<Verdict>>(Fixture.file("interchange.json").readText())

    @Test
    fun `every pair is judged as on the host, and laid out as there`() {
        assertTrue(verdicts.size > 45)
        assertTrue(verdicts.any { it.program == "recorded-b12069f6" && !it.refused })
        for (expected in verdicts) {
            val what = "${expected.state} in ${expected.program}"
            val found = compare(read(expected.state), StateSpec(Fixture.program(expected.program)))
            assertEquals(expected.differences, found.differences, what)
            assertEquals(expected.adopted, found.adopted, what)
            assertEquals(expected.left, found.left, what)
            assertEquals(expected.proven, found.isProven, what)
            val tensors = read(expected.tensors).tensors
            assertEquals(tensors.map { it.name to it.shape }, found.tensors.map { it.name to it.shape }, what)
            for ((ours, theirs) in found.tensors.zip(tensors)) {
                assertContentEquals(theirs.bytes.copy(), ours.bytes.copy(), "$what: ${ours.name}")
            }
        }
    }

    @Test
    fun `a state is restored where the host restores it, also of older versions`() {
        for (expected in verdicts) {
            val what = "${expected.state} in ${expected.program}"
            val file = Fixture.file(expected.state).copyTo(File(folder, "personal.state"), overwrite = true)
            val states = TwoGenerations(file, StateSpec(Fixture.program(expected.program)), RealDisk, 1L shl 24)
            if (expected.refused) {
                assertFailsWith<StateException>(what) { states.load() }
            } else {
                assertEquals(expected.adopted, states.load().state.compared.adopted, what)
            }
        }
    }

    @Test
    fun `a state of another build is restored, said to be whole, and saved again`() = runBlocking {
        put("interchange-base.state")
        trainer("interchange-stateless").use { trainer ->
            val restored = trainer.restore()
            assertNull(restored.unproven)
            assertEquals(emptyList(), restored.left + restored.differences)
            assertEquals(trainer.program.manifest.stateTensors.size, restored.adopted.size)
            assertEquals(2L, trainer.save())
        }
    }

    @Test
    fun `an old state is restored, and it is said what cannot be told`() = runBlocking {
        put("interchange-base-old.state")
        trainer("interchange-stateless").use { trainer ->
            assertTrue("its tensors fit this program" in assertNotNull(trainer.restore().unproven))
            assertEquals(2L, trainer.save())
            assertNull(trainer.restore().unproven)
        }
    }

    @Test
    fun `of another program what matches is taken over where the app asks for it`() = runBlocking {
        put("interchange-part.state")
        trainer("interchange-stateless").use { trainer ->
            val refused = assertFailsWith<ForeignStateException> { trainer.restore() }
            assertTrue("another part of square trains there. Restored with adopt" in assertNotNull(refused.message))
            assertFailsWith<ForeignStateException> { trainer.save() }
            val restored = trainer.restore(Adopt.MATCHING)
            assertEquals(listOf("another part of square trains there"), restored.differences)
            assertTrue("square" in restored.left && "head/w" in restored.adopted)
            assertEquals(2L, trainer.save())
            // There is nothing of this program to go back to but what was built.
            assertEquals(3L, trainer.rollback().generation)
        }
    }

    @Test
    fun `nothing that matches is no state of the program`() = runBlocking {
        put("mlp.state")
        trainer("interchange-stateless").use { trainer ->
            val error = assertFailsWith<ForeignStateException> { trainer.restore(Adopt.MATCHING) }
            assertTrue("no weight of it matches" in assertNotNull(error.message))
        }
    }

    @Test
    fun `a larger state of another program is kept where parts of it were taken over`() = runBlocking {
        val larger = put("interchange-larger.state").readBytes()
        trainer("interchange-stateless").use { trainer ->
            assertEquals(listOf("bank trains there and is not here"), trainer.restore(Adopt.MATCHING).differences)
            assertEquals(2L, trainer.save())
            assertContentEquals(larger, File(folder, "personal.state.previous").readBytes())
        }
    }

    @Test
    fun `a larger state of another program, of an older version, is not overwritten`() = runBlocking {
        val larger = put("interchange-larger-old.state").readBytes()
        trainer("interchange-stateless").use { trainer ->
            assertFailsWith<ForeignStateException> { trainer.save() }
            assertContentEquals(larger, File(folder, "personal.state").readBytes())
        }
    }

    private fun read(name: String) = StateFile.unpack(ByteBuffer.wrap(Fixture.file(name).readBytes()))

    private fun put(name: String) = Fixture.file(name).copyTo(File(folder, "personal.state"))

    private suspend fun trainer(name: String): Trainer =
        Trainer.open(Fixture.program(name), { ScriptedRuntime(it.manifest) }, Store(folder))
}
