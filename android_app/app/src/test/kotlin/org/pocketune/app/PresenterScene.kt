package org.pocketune.app

import app.cash.turbine.ReceiveTurbine
import app.cash.turbine.test
import java.io.File
import kotlin.time.Duration.Companion.seconds
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.consumeAsFlow
import kotlinx.coroutines.flow.flowOf
import kotlinx.coroutines.test.runTest
import org.junit.Rule
import org.junit.rules.TemporaryFolder
import org.pocketune.app.core.DeviceFacts
import org.pocketune.app.core.Event
import org.pocketune.app.core.Notebook
import org.pocketune.app.core.Point
import org.pocketune.app.core.Presenter
import org.pocketune.app.core.UiState
import org.pocketune.trainer.TrainEvent

/** A presenter without windows, and a coach that does what the test says. */
abstract class PresenterScene {
    @get:Rule val folder = TemporaryFolder()
    protected val file by lazy { File(folder.root, "drawings.json") }
    protected val stroke = listOf(Point(10.0, 10.0, 0), Point(500.0, 900.0, 40))

    protected fun present(coach: FakeCoach = FakeCoach(), opens: Boolean = true, test: suspend Scene.() -> Unit) = runTest {
        val events = Channel<Event>(Channel.UNLIMITED)
        val presenter = Presenter(coach, Notebook(file), FakeSettings(), flowOf(DeviceFacts()), Dispatchers.Unconfined)
        presenter.states(events.consumeAsFlow()).test(timeout = 600.seconds) {
            Scene(coach, events, this).run {
                if (opens) until { it.model != null }
                test()
            }
            cancelAndIgnoreRemainingEvents()
        }
    }

    protected inner class Scene(
        val coach: FakeCoach,
        private val events: Channel<Event>,
        private val states: ReceiveTurbine<UiState>,
    ) {
        var state = UiState()
            private set

        fun tell(vararg told: Event) = told.forEach { events.trySend(it) }

        fun say(vararg said: TrainEvent) = said.forEach { coach.training.trySend(it) }

        suspend fun until(isThere: (UiState) -> Boolean) {
            while (!isThere(state)) state = states.awaitItem()
        }

        suspend fun taught(labels: List<Int>) {
            for (label in labels) tell(Event.Choose(label), Event.Draw(stroke), Event.Add)
            until { it.notes.drawings.size == labels.size && it.draft.isEmpty() }
        }
    }
}
