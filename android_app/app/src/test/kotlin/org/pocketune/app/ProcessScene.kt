package org.pocketune.app

import java.io.File
import java.io.InputStream
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
import org.junit.Assert.fail
import org.junit.Rule
import org.junit.rules.TemporaryFolder
import org.pocketune.app.core.Coach
import org.pocketune.app.core.DeviceFacts
import org.pocketune.app.core.Event
import org.pocketune.app.core.Notebook
import org.pocketune.app.core.Notes
import org.pocketune.app.core.Npu
import org.pocketune.app.core.Presenter
import org.pocketune.app.core.Stroke
import org.pocketune.app.core.Training
import org.pocketune.app.core.TrainerCoach
import org.pocketune.app.core.Trial
import org.pocketune.app.core.UiState
import org.pocketune.app.core.builtInSamples
import org.pocketune.trainer.Guards
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.Values

/** Presenter, trainer and the real TFLite library in a process that ends when the test says, without windows. */
abstract class ProcessScene {
    @get:Rule val folder = TemporaryFolder()
    protected val person = Fixtures.read.person

    protected val runtime = TestApp.real

    protected fun process(
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

    protected inner class Scene(
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
