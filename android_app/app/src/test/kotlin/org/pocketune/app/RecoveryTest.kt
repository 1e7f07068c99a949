package org.pocketune.app

import java.io.ByteArrayInputStream
import java.io.File
import java.io.FileNotFoundException
import java.nio.ByteBuffer
import java.util.concurrent.atomic.AtomicInteger
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.pocketune.app.core.Comparison
import org.pocketune.app.core.Event
import org.pocketune.app.core.Point
import org.pocketune.app.core.Problem
import org.pocketune.app.core.Standing
import org.pocketune.app.core.Switch
import org.pocketune.app.core.Training
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.TrainingRuntime
import org.robolectric.RobolectricTestRunner

/** When things go wrong. */
@RunWith(RobolectricTestRunner::class)
class RecoveryTest : ProcessScene() {
    @Test fun `a training goes on where the process ended`() {
        process {
            teach()
            personalizeUpTo(45)
        }
        process {
            until { it.model != null && it.notes.drawings.size == person.size }
            assertFalse(state.personal)
            personalizeUpTo(31, held = 1)
            assertEquals(30, (state.training as Training.Running).resumedAt)
            brake.release()
            until { it.training == Training.Idle && it.comparison != null }
        }
        process { until { it.personal } }
    }

    @Test fun `a cancelled training leaves the old model, and the next one works`() = process {
        teach()
        val before = answer()
        personalizeUpTo(35)
        tell(Event.Cancel)
        while (state.training != Training.Idle) {
            brake.step()
            delay(5)
        }
        assertEquals(null, state.problem)
        assertFalse(state.personal)
        tell(Event.ClearTrial)
        assertEquals(before, answer())
        personalizeUpTo(1)
        assertEquals("it begins anew", 0, (state.training as Training.Running).resumedAt)
        brake.release()
        until { it.comparison != null && it.training == Training.Idle }
        assertTrue(state.personal)
    }

    @Test fun `a program with one flipped bit is told of, and no runtime sees it`() =
        process(asset = { name ->
            val bytes = File("target/assets/$name").readBytes()
            if (name.endsWith(".tflite")) bytes[bytes.size / 2] = (bytes[bytes.size / 2].toInt() xor 1).toByte()
            ByteArrayInputStream(bytes)
        }, runtime = { error("a runtime was opened") }) {
            until { it.problem == Problem.PROGRAM_DAMAGED }
            assertEquals(null, state.model)
        }

    @Test fun `assets that are missing, cut or of each other are told of`() {
        fun read(name: String) = File("target/assets/$name").readBytes()
        val spoiled = mutableListOf<(String) -> ByteArray?>()
        for (file in listOf("digits.json", "digits.tflite", "digits.samples")) {
            spoiled += { name -> if (name == file) null else read(name) }
            spoiled += { name -> if (name == file) ByteArray(0) else read(name) }
            spoiled += { name -> if (name == file) read(name).copyOf(read(name).size / 2) else read(name) }
        }
        val changes = listOf(
            "\"size\":8" to "\"size\":9", "\"size\":8" to "\"size\":0", "\"spare\":6" to "\"spare\":7",
            "\"held_out_every\":4" to "\"held_out_every\":0", "\"cells\":4" to "\"cells\":0",
            "\"9\"]" to "\"8\"]", "\"replay\":0.5" to "\"replay\":1.5", "\"levels\":16" to "\"levels\":0",
        )
        for ((old, new) in changes) {
            spoiled += { name -> if (name == "digits.json") read(name).decodeToString().replace(old, new).encodeToByteArray() else read(name) }
        }
        for (assets in spoiled) {
            val open = { name: String -> assets(name)?.inputStream() ?: throw FileNotFoundException(name) }
            process(asset = open, runtime = { error("a runtime was opened") }) {
                until { it.problem == Problem.PROGRAM_DAMAGED }
                assertEquals(null, state.model)
            }
        }
    }

    @Test fun `a checkpoint of another program does not stand in the way`() {
        process {
            teach()
            personalizeUpTo(45)
        }
        foreign.copyTo(File(folder.root, "model/personal.state.training"), overwrite = true)
        process {
            until { it.model != null }
            tell(Event.Personalize)
            until { it.comparison != null && it.training == Training.Idle }
        }
    }

    @Test fun `what was undone can be brought back after the app was closed`() {
        personalizeOnce()
        for (isFirst in listOf(true, false)) {
            lateinit var compared: Comparison
            process {
                until { it.personal }
                compared = checkNotNull(state.comparison)
                tell(Event.Undo)
                // Back to what was built, or to the first of the person's models.
                until { it.switched == Switch.UNDONE && it.personal != isFirst && it.comparison?.isOld == true }
                isNoted()
            }
            process {
                until { it.model != null }
                assertEquals(!isFirst, state.personal)
                assertEquals(Switch.UNDONE, state.switched)
                assertEquals(compared.copy(isOld = true), state.comparison)
                tell(Event.Undo)
                until { it.personal && it.switched == null }
                if (isFirst) personalize()
                isNoted()
            }
        }
    }

    /** That is what the built-in samples are mixed in for. */
    @Test fun `one symbol alone is learned and the digits are not forgotten`() = process {
        until { it.model != null }
        tell(Event.AddSymbol("★"))
        until { it.chosen == 10 }
        val star = listOf(listOf(Point(0.0, 0.0, 0), Point(100.0, 100.0, 9)), listOf(Point(100.0, 0.0, 20), Point(0.0, 100.0, 30)))
        repeat(8) {
            star.forEach { tell(Event.Draw(it)) }
            tell(Event.Add)
        }
        until { it.notes.drawings.size == 8 }
        val before = shareOfDigits()
        tell(Event.Personalize)
        until { it.comparison != null && it.training == Training.Idle }
        assertEquals(Standing.OFFERED, state.comparison?.standing)
        assertEquals(10, bestOf(star))
        assertTrue("$before before, now ${shareOfDigits()}", shareOfDigits() >= before - 0.05)
    }

    @Test fun `an interpreter that fails in mid-epoch leaves the old model at work`() {
        var steps = 0
        val failing = RuntimeFactory { program ->
            val real = runtime.open(program)
            object : TrainingRuntime by real {
                override fun run(
                    signature: String,
                    inputs: Map<String, ByteBuffer>,
                    outputs: Map<String, ByteBuffer>,
                ) {
                    if (signature == "train" && ++steps == 20) throw RuntimeFailedException("out of memory")
                    real.run(signature, inputs, outputs)
                }
            }
        }
        process(runtime = failing) {
            teach()
            val before = answer()
            tell(Event.Personalize)
            until { it.training == Training.Idle && it.problem == Problem.RUNTIME }
            assertEquals(before, answer())
            assertFalse(state.personal)
        }
    }

    @Test fun `what was opened is closed when the second interpreter does not open`() {
        val closed = mutableListOf<TrainingRuntime>()
        val short = RuntimeFactory { program ->
            if (opened.incrementAndGet() % 2 == 0) throw RuntimeFailedException("out of memory")
            val real = runtime.open(program)
            object : TrainingRuntime by real {
                override fun close() {
                    closed += this
                    real.close()
                }
            }
        }
        process(runtime = short) { until { it.problem == Problem.RUNTIME } }
        assertEquals(opened.get() / 2, closed.size)
    }

    private val opened = AtomicInteger()

    @Test fun `a state that cannot be written leaves the old model at work`() {
        // A checkpoint, or only the result.
        for (partial in listOf("personal.state.training.partial", "personal.state.partial")) {
            val blocked = File(folder.root, "model/$partial").apply { resolve("in the way").mkdirs() }
            process {
                until { it.model != null }
                if (state.notes.drawings.isEmpty()) teach()
                val before = answer()
                tell(Event.Personalize)
                until { it.training == Training.Idle && it.problem == Problem.DISK_FULL }
                assertFalse(state.personal)
                assertEquals(before, answer())
            }
            blocked.deleteRecursively()
        }
    }

    @Test fun `a newest state that is damaged is told of, and the one before takes its place`() {
        personalizeOnce()
        process {
            until { it.personal }
            personalize()
        }
        damage(states().single { it.name == "personal.state" }, at = 100)
        process {
            until { it.problem == Problem.STATE_OLDER && it.model != null && it.personal }
            assertEquals("it was about the one that is lost", null, state.comparison)
            tell(Event.Undo)
            until { it.switched == Switch.UNDONE && !it.personal }
        }
    }

    @Test fun `a state that cannot be used is told of, and one can personalize again`() {
        val unusable = listOf<Pair<Problem, () -> Unit>>(
            Problem.STATE_DAMAGED to { states().forEach { damage(it, at = it.length().toInt() / 2) } },
            // Not even to be recognised as a state.
            Problem.STATE_DAMAGED to { states().forEach { damage(it, at = 0) } },
            Problem.STATE_FOREIGN to { foreign.copyTo(File(folder.root, "model/personal.state"), overwrite = true) },
        )
        for ((problem, spoil) in unusable) {
            personalizeOnce()
            spoil()
            process {
                until { it.problem == problem && it.model != null && !it.personal }
                tell(Event.DismissProblem)
                personalize()
                assertEquals(null, state.problem)
            }
            process { until { it.personal && it.problem == null } }
        }
    }

    /** A good state of another program. */
    private val foreign = File("target/fixtures/foreign.state")

    private fun personalizeOnce() = process {
        until { it.model != null }
        if (state.notes.drawings.isEmpty()) teach()
        personalize()
    }

    private fun states() = listOf("", ".previous").map { File(folder.root, "model/personal.state$it") }.filter(File::exists)

    private fun damage(file: File, at: Int) = file.writeBytes(file.readBytes().also { it[at] = (it[at] + 1).toByte() })
}
