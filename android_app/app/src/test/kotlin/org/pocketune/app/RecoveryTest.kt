package org.pocketune.app

import java.io.ByteArrayInputStream
import java.io.File
import java.io.FileNotFoundException
import java.io.InputStream
import java.nio.ByteBuffer
import java.security.MessageDigest
import java.util.concurrent.atomic.AtomicInteger
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.flowOf
import kotlinx.coroutines.flow.receiveAsFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeoutOrNull
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Assert.fail
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.pocketune.app.core.Coach
import org.pocketune.app.core.Comparison
import org.pocketune.app.core.DeviceFacts
import org.pocketune.app.core.Event
import org.pocketune.app.core.Notebook
import org.pocketune.app.core.Notes
import org.pocketune.app.core.Npu
import org.pocketune.app.core.Point
import org.pocketune.app.core.Presenter
import org.pocketune.app.core.Problem
import org.pocketune.app.core.Standing
import org.pocketune.app.core.Stroke
import org.pocketune.app.core.Switch
import org.pocketune.app.core.Training
import org.pocketune.app.core.TrainerCoach
import org.pocketune.app.core.Trial
import org.pocketune.app.core.UiState
import org.pocketune.app.core.builtInSamples
import org.pocketune.trainer.Guards
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.TrainingRuntime
import org.pocketune.trainer.Values
import org.robolectric.RobolectricTestRunner

/** Presenter, trainer and the real TFLite library, without windows, when things go wrong. */
@RunWith(RobolectricTestRunner::class)
class RecoveryTest {
    @get:Rule val folder = TemporaryFolder()
    private val person = Fixtures.read.person

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

    @Test fun `what was compiled for the NPU of this very phone is handed to its runtime, whole or not at all`() {
        val compiled = byteArrayOf(1, 2, 3)
        val sha256 = MessageDigest.getInstance("SHA-256").digest(compiled).joinToString("") { "%02x".format(it) }
        val entry = "{\"compiled\":{\"SM8650\":{\"file\":\"digits-SM8650.tflite\",\"sha256\":\"$sha256\"}},"
        fun assets(found: ByteArray) = { name: String ->
            when (name) {
                "digits-SM8650.tflite" -> found.inputStream()
                "digits.json" -> File("target/assets/$name").readText().replaceFirst("{", entry).byteInputStream()
                else -> File("target/assets/$name").inputStream()
            }
        }
        for ((soc, wanted) in listOf("SM8650" to listOf(compiled.toList()), "SM8550" to emptyList())) {
            val given = mutableListOf<List<Byte>>()
            val npu = Npu(soc) { bytes -> runtime.also { given += ByteArray(bytes.remaining()).also(bytes::get).toList() } }
            process(assets(compiled), npu = npu) { until { it.model != null } }
            assertEquals(wanted, given)
        }
        process(assets(byteArrayOf(1, 2)), npu = Npu("SM8650") { error("a runtime was opened") }) {
            until { it.problem == Problem.PROGRAM_DAMAGED }
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

    private val runtime = TestApp.real

    private fun process(
        asset: (String) -> InputStream = { File("target/assets/$it").inputStream() },
        runtime: RuntimeFactory = this.runtime,
        npu: Npu? = null,
        test: suspend Scene.() -> Unit,
    ) = runBlocking {
        val brake = Brake()
        val coach = TrainerCoach(asset, File(folder.root, "model"), brake.on(runtime), Guards(), npu)
        val notebook = Notebook(File(folder.root, "drawings.json"))
        val presenter = Presenter(coach, notebook, FakeSettings(), flowOf(DeviceFacts()), Dispatchers.IO)
        val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
        val events = Channel<Event>(Channel.UNLIMITED)
        val states = MutableStateFlow(UiState())
        scope.launch { presenter.states(events.receiveAsFlow()).collect { states.value = it } }
        try {
            withTimeoutOrNull(60_000) { Scene(coach, brake, events, states).test() }
                ?: fail("waited too long; ${states.value.copy(notes = Notes())}")
        } finally {
            // The process ends: nobody says goodbye.
            scope.cancel()
            brake.release()
            coach.close()
        }
    }

    private inner class Scene(
        private val coach: Coach,
        val brake: Brake,
        private val events: Channel<Event>,
        private val states: MutableStateFlow<UiState>,
    ) {
        val state get() = states.value

        fun tell(vararg told: Event) = told.forEach { events.trySend(it) }

        suspend fun until(isThere: (UiState) -> Boolean) {
            states.first(isThere)
        }

        suspend fun teach() {
            until { it.model != null }
            for (drawing in person) {
                tell(Event.Choose(drawing.label))
                drawing.strokes.forEach { tell(Event.Draw(it)) }
                tell(Event.Add)
            }
            until { it.notes.drawings.size == person.size }
            isNoted()
        }

        suspend fun personalize() {
            val before = state.trainings
            tell(Event.Personalize)
            until { it.trainings > before }
            isNoted()
        }

        /** Waits until all that the person did and saw is on the disk. */
        suspend fun isNoted() {
            while (Notebook(File(folder.root, "drawings.json")).read() != state.notes) delay(1)
        }

        /** Begins a training, or goes on with one, and holds it at a step: after [held] steps of this process. */
        suspend fun personalizeUpTo(step: Int, held: Int = step) {
            brake.holdAfter(held)
            tell(Event.Personalize)
            until { (it.training as? Training.Running)?.step == step }
        }

        suspend fun bestOf(strokes: List<Stroke>): Int =
            coach.logits(listOf(checkNotNull(state.model).description.preprocessing.image(strokes))).single().best()

        /** Of the built-in samples, how many are answered right. */
        suspend fun shareOfDigits(): Double {
            val file = checkNotNull(state.model).description.samples
            val samples = builtInSamples(File("target/assets/${file.file}").readBytes(), 64, file.levels)
            val answers = coach.logits(samples.map { (it.inputs.getValue("x") as Values.Floats).array }).map { it.best() }
            return samples.indices.count { answers[it] == samples[it].label } / samples.size.toDouble()
        }

        private fun FloatArray.best() = indices.maxBy { this[it] }

        /** What the models say now of a drawing. */
        suspend fun answer(): Trial {
            tell(Event.ClearTrial)
            until { it.trial.strokes.isEmpty() }
            tell(Event.Try(person[0].strokes[0]))
            return states.first { it.trial.strokes.size == 1 && it.trial.isCurrent }.trial
        }
    }
}
