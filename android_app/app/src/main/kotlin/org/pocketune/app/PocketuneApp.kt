package org.pocketune.app

import android.app.Application
import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.receiveAsFlow
import kotlinx.coroutines.launch
import org.pocketune.app.core.Event
import org.pocketune.app.core.Kept
import org.pocketune.app.core.Notebook
import org.pocketune.app.core.Npu
import org.pocketune.app.core.Presenter
import org.pocketune.app.core.TrainerCoach
import org.pocketune.app.core.UiState
import org.pocketune.app.device.AndroidSettings
import org.pocketune.app.device.Device
import org.pocketune.app.device.NightJob
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.RuntimeFactory

/** Puts the parts together. The presenter lives as long as the process, so windows may come and go. */
open class PocketuneApp : Application() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
    private val events = Channel<Event>(Channel.UNLIMITED)
    private var isFresh = true

    /** The newest state; tests put there what is hard to come by. */
    protected val shown = MutableStateFlow(UiState())

    /** What to show, always the newest. */
    val states: StateFlow<UiState> = shown.asStateFlow()

    /** What runs programs; tests look over its shoulder. */
    protected open val runtime: RuntimeFactory = TfliteRuntimeFactory()

    /** The phone's NPU, in a build with the library for it. */
    protected open val npu: Npu? get() = npuOf(this)

    override fun onCreate() {
        super.onCreate()
        val device = Device(this)
        val coach = TrainerCoach(assets::open, File(noBackupFilesDir, "model"), runtime, device.guards, npu)
        val notebook = Notebook(File(noBackupFilesDir, "drawings.json"))
        val presenter = Presenter(coach, notebook, AndroidSettings(this), device.facts, Dispatchers.IO)
        scope.launch {
            try {
                presenter.states(events.receiveAsFlow()).collect { show(it) }
            } finally {
                coach.close()
            }
        }
    }

    /** What the user did. */
    fun tell(event: Event) {
        events.trySend(event)
    }

    /** A window opens; what one before it kept matters only to the first of a process, which a night may have begun. */
    fun opened(kept: Kept?) {
        if (isFresh && kept != null) tell(Event.Return(kept))
        isFresh = false
    }

    /** Ends everything; Android itself only ever ends the process. */
    override fun onTerminate() {
        scope.cancel()
        super.onTerminate()
    }

    private fun show(state: UiState) {
        val before = shown.value
        shown.value = state
        if (before.nightly != state.nightly) NightJob.plan(this, state.nightly)
    }
}
