package org.pocketune.app.ui

import android.Manifest
import android.app.Activity
import android.content.pm.PackageManager
import android.os.Build
import android.os.Bundle
import android.view.View
import android.view.ViewGroup
import android.widget.ImageView
import android.widget.TextView
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import kotlinx.serialization.json.Json
import org.pocketune.app.PocketuneApp
import org.pocketune.app.R
import org.pocketune.app.core.Event
import org.pocketune.app.core.Kept
import org.pocketune.app.core.Problem
import org.pocketune.app.core.Screen
import org.pocketune.app.core.Training
import org.pocketune.app.core.UiState
import org.pocketune.app.device.TrainingService

/** The only window: draws the app's states. It holds nothing that a rotation could lose. */
class MainActivity : Activity() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main.immediate)
    private val app get() = application as PocketuneApp
    private val screens = mutableMapOf<Screen, ScreenView>()
    private var drawing: Job? = null

    /** What the window shows; nothing when it is not seen. */
    var drawn = UiState()
        private set

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.main)
        findViewById<View>(R.id.problem_dismiss).setOnClickListener { app.tell(Event.DismissProblem) }
        app.opened(savedInstanceState?.getString(KEPT)?.let(::parse))
    }

    override fun onStart() {
        super.onStart()
        drawing = scope.launch { app.states.collect(::draw) }
    }

    override fun onStop() {
        drawing?.cancel()
        drawn = UiState()
        super.onStop()
    }

    override fun onSaveInstanceState(outState: Bundle) {
        super.onSaveInstanceState(outState)
        val kept = app.states.value.run { Kept(screen, chosen, draft, trial.strokes) }
        outState.putString(KEPT, Json.encodeToString(Kept.serializer(), kept))
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    /** An update of the app may have changed what is kept: then it is not. */
    private fun parse(kept: String): Kept? = try {
        Json.decodeFromString(kept)
    } catch (_: IllegalArgumentException) {
        null
    }

    private fun draw(state: UiState) {
        screens.getOrPut(state.screen) { screenView(state.screen, findViewById(R.id.screens), ::tell) }.draw(state)
        screens.forEach { (screen, view) -> view.root.showIf(screen == state.screen) }
        drawBar(state.screen)
        keepAlive(state)
        findViewById<View>(R.id.problem).showIf(state.problem != null)
        state.problem?.let { findViewById<TextView>(R.id.problem_text).setText(sentence(it)) }
        drawn = state
    }

    /** Only an app that is seen may start a service in the foreground; the service goes on when the app is left. */
    private fun keepAlive(state: UiState) {
        if (state.training != Training.Idle && drawn.training == Training.Idle) TrainingService.start(this)
    }

    private fun drawBar(current: Screen) {
        // Where letters are large, five words do not fit side by side: the icons remain, with their names for TalkBack.
        val worded = resources.configuration.fontScale <= LARGEST_WORDED
        findViewById<ViewGroup>(R.id.bar).fill(R.layout.bar_item, Screen.entries) { item, screen ->
            val (name, icon) = look(screen)
            item.isSelected = screen == current
            item.contentDescription = getString(name)
            item.tooltipText = getString(name)
            item.setOnClickListener { tell(Event.Show(screen)) }
            item.findViewById<ImageView>(R.id.bar_icon).setImageResource(icon)
            item.findViewById<TextView>(R.id.bar_label).apply {
                showIf(worded)
                setText(name)
            }
        }
    }

    private fun tell(event: Event) {
        if (event == Event.Personalize) askToNotify()
        app.tell(event)
    }

    /** The training goes on in the background either way; the notification only shows it. */
    private fun askToNotify() {
        if (Build.VERSION.SDK_INT < Build.VERSION_CODES.TIRAMISU) return
        if (checkSelfPermission(Manifest.permission.POST_NOTIFICATIONS) != PackageManager.PERMISSION_GRANTED) {
            requestPermissions(arrayOf(Manifest.permission.POST_NOTIFICATIONS), 0)
        }
    }

    private fun look(screen: Screen): Pair<Int, Int> = when (screen) {
        Screen.TEACH -> R.string.nav_teach to R.drawable.ic_teach
        Screen.PERSONALIZE -> R.string.nav_personalize to R.drawable.ic_personalize
        Screen.COMPARE -> R.string.nav_compare to R.drawable.ic_compare
        Screen.TRY -> R.string.nav_try to R.drawable.ic_try
        Screen.ABOUT -> R.string.nav_about to R.drawable.ic_about
    }

    private fun sentence(problem: Problem): Int = when (problem) {
        Problem.PROGRAM_DAMAGED -> R.string.problem_program_damaged
        Problem.PROGRAM_NEWER -> R.string.problem_program_newer
        Problem.STATE_DAMAGED -> R.string.problem_state_damaged
        Problem.STATE_OLDER -> R.string.problem_state_older
        Problem.STATE_FOREIGN -> R.string.problem_state_foreign
        Problem.DISK_FULL -> R.string.problem_disk_full
        Problem.DIVERGED -> R.string.problem_diverged
        Problem.INPUT -> R.string.problem_input
        Problem.RUNTIME -> R.string.problem_runtime
        Problem.DRAWINGS_DAMAGED -> R.string.problem_drawings_damaged
    }

    private companion object {
        const val KEPT = "kept"
        const val LARGEST_WORDED = 1.35f
    }
}
