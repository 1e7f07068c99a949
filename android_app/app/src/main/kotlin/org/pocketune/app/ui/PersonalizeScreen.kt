package org.pocketune.app.ui

import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.Switch
import android.widget.TextView
import org.pocketune.app.R
import org.pocketune.app.core.DeviceFacts
import org.pocketune.app.core.Event
import org.pocketune.app.core.Screen
import org.pocketune.app.core.Training
import org.pocketune.app.core.UiState
import org.pocketune.trainer.PauseReason

/** One button; then the loss as it falls. */
class PersonalizeScreen(parent: ViewGroup, tell: (Event) -> Unit) : ScreenView(parent, R.layout.personalize) {
    private val button = view<Button>(R.id.personalize)
    private val pause = view<Button>(R.id.pause)

    init {
        onClick(R.id.cancel) { tell(Event.Cancel) }
        view<Switch>(R.id.nightly).setOnClickListener { tell(Event.SetNightly((it as Switch).isChecked)) }
        button.setOnClickListener { tell(it.tag as Event) }
        pause.setOnClickListener { tell(it.tag as Event) }
    }

    override fun draw(state: UiState) {
        val running = state.training as? Training.Running
        view<TextView>(R.id.summary).text = summary(state)
        val teach = state.missing > 0
        button.setText(if (teach) R.string.go_teach else R.string.personalize)
        button.tag = if (teach) Event.Show(Screen.TEACH) else Event.Personalize
        button.isEnabled = teach || state.canPersonalize
        button.showIf(running == null)
        view<View>(R.id.progress).showIf(running != null)
        view<Switch>(R.id.nightly).isChecked = state.nightly
        running?.let { draw(it, state.device) }
    }

    private fun summary(state: UiState): String =
        if (state.missing > 0) resources.getQuantityString(R.plurals.personalize_missing, state.missing, state.missing)
        else resources.getString(
            R.string.personalize_ready,
            resources.getQuantityString(R.plurals.drawings, state.toLearn.size, state.toLearn.size),
            state.heldOut.size,
        )

    private fun draw(running: Training.Running, device: DeviceFacts) {
        view<TextView>(R.id.step).text =
            if (running.steps == 0) resources.getString(R.string.training_preparing)
            else resources.getString(R.string.training_step, running.step, running.steps)
        val note = running.paused?.let(::reason)
            ?: running.resumedAt.takeIf { it > 0 }?.let { resources.getString(R.string.training_resumed, it) }
        view<TextView>(R.id.note).apply {
            showIf(note != null)
            text = note
        }
        view<LossCurve>(R.id.curve).show(running.losses, running.resumedAt, running.steps)
        view<ViewGroup>(R.id.figures).fill(R.layout.figure, figures(running, device)) { figure, (name, value) ->
            figure.findViewById<TextView>(R.id.figure_name).setText(name)
            figure.findViewById<TextView>(R.id.figure_value).text = value
        }
        val waits = running.paused == PauseReason.Person
        pause.setText(if (waits) R.string.resume else R.string.pause)
        pause.tag = if (waits) Event.Resume else Event.Pause
    }

    private fun reason(paused: PauseReason): String = when (paused) {
        is PauseReason.Person -> resources.getString(R.string.paused_person)
        is PauseReason.Heat -> resources.getString(R.string.paused_heat)
        is PauseReason.Battery -> resources.getString(R.string.paused_battery, paused.percent)
        is PauseReason.Memory -> resources.getString(R.string.paused_memory)
    }

    private fun figures(running: Training.Running, device: DeviceFacts): List<Pair<Int, String>> {
        val unknown = resources.getString(R.string.unknown)
        val battery = if (device.charging) R.string.battery_charging else R.string.battery_value
        return listOf(
            R.string.loss_title to (running.losses.lastOrNull()?.let { resources.decimals(it, 2) } ?: unknown),
            R.string.step_time to
                (running.millis?.let { resources.getString(R.string.step_time_value, resources.decimals(it, 1)) } ?: unknown),
            R.string.heat to
                (device.thermal?.let { resources.getStringArray(R.array.heat_levels)[it.ordinal] } ?: unknown),
            R.string.battery to (device.battery?.let { resources.getString(battery, it) } ?: unknown),
        )
    }
}
