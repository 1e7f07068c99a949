package org.pocketune.app.ui

import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.TextView
import org.pocketune.app.R
import org.pocketune.app.core.Change
import org.pocketune.app.core.Event
import org.pocketune.app.core.Standing
import org.pocketune.app.core.Switch
import org.pocketune.app.core.Training
import org.pocketune.app.core.UiState

/** What the last training changed, and which model to use. */
class CompareScreen(parent: ViewGroup, tell: (Event) -> Unit) : ScreenView(parent, R.layout.compare) {
    init {
        onClick(R.id.keep) { tell(Event.Keep) }
        onClick(R.id.undo) { tell(Event.Undo) }
        onClick(R.id.reset) { tell(Event.Reset) }
    }

    override fun draw(state: UiState) {
        val comparison = state.comparison
        val standing = comparison?.standing
        val refusedLast = standing == Standing.REFUSED && comparison?.isOld == false
        val message = if (refusedLast) R.string.standing_refused else when (state.switched) {
            Switch.UNDONE -> R.string.standing_undone
            Switch.RESET -> R.string.standing_reset
            null -> when (standing) {
                null -> if (state.personal) R.string.compare_earlier else R.string.compare_empty
                Standing.OFFERED -> null
                Standing.KEPT -> R.string.standing_kept
                Standing.REFUSED -> R.string.standing_refused
            }
        }
        view<TextView>(R.id.message).apply {
            showIf(message != null)
            text = message?.let(resources::getString)
        }
        view<View>(R.id.scores).showIf(comparison != null)
        val idle = state.training == Training.Idle
        view<View>(R.id.keep).showIf(idle && state.switched == null && standing == Standing.OFFERED)
        view<Button>(R.id.undo).apply {
            showIf(idle && (state.personal || state.switched != null))
            isEnabled = !state.isSwitching
            setText(if (state.switched == null) R.string.undo else R.string.redo)
        }
        view<View>(R.id.reset).apply {
            showIf(idle && state.personal)
            isEnabled = !state.isSwitching
        }
        val changes = comparison?.changes.orEmpty()
        view<TextView>(R.id.changes_title).apply {
            showIf(comparison != null)
            setText(if (changes.isEmpty()) R.string.changes_empty else R.string.changes_title)
        }
        view<ViewGroup>(R.id.changes).fill(R.layout.change, changes) { row, change -> row.draw(change, state.labels) }
        if (comparison != null) {
            view<TextView>(R.id.before).text = percent(comparison.before)
            view<TextView>(R.id.after).text = percent(comparison.after)
            view<TextView>(R.id.measured).text =
                resources.getQuantityString(R.plurals.compare_measured, comparison.heldOut, comparison.heldOut)
        }
    }

    private fun View.draw(change: Change, labels: List<String>) {
        val (wrote, before, after) = listOf(change.drawing.label, change.before, change.after).map(labels::get)
        findViewById<DrawingView>(R.id.change_drawing).strokes = change.drawing.strokes
        findViewById<TextView>(R.id.change_text).text = resources.getString(R.string.change, before, after)
        findViewById<TextView>(R.id.change_note).apply {
            val right = change.after == change.drawing.label
            val note = when {
                right -> R.string.change_right
                change.before == change.drawing.label -> R.string.change_wrong
                else -> R.string.change_still_wrong
            }
            text = resources.getString(note, wrote)
            setTextColor(context.getColor(if (right) R.color.good else R.color.bad))
        }
        contentDescription = resources.getString(R.string.change_description, wrote, before, after)
    }

    private fun percent(share: Double) = resources.getString(R.string.percent, Math.round(share * 100))
}
