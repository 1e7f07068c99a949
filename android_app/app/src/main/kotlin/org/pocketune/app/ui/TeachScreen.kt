package org.pocketune.app.ui

import android.app.Activity
import android.text.SpannableStringBuilder
import android.text.Spanned
import android.text.style.RelativeSizeSpan
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.TextView
import org.pocketune.app.R
import org.pocketune.app.core.Drawing
import org.pocketune.app.core.Event
import org.pocketune.app.core.UiState

/** Write a character and say what it means. */
class TeachScreen(parent: ViewGroup, private val tell: (Event) -> Unit) : ScreenView(parent, R.layout.teach) {
    private val window = parent.context as Activity
    private val pad = view<StrokePad>(R.id.pad)
    private val rename = view<Button>(R.id.rename)

    init {
        pad.onStroke = { tell(Event.Draw(it)) }
        onClick(R.id.clear) { tell(Event.ClearDraft) }
        onClick(R.id.add) { tell(Event.Add) }
        onClick(R.id.delete) { tell(Event.Delete) }
        onClick(R.id.done) { tell(Event.Select(null)) }
    }

    override fun draw(state: UiState) {
        val label = state.labels.getOrNull(state.chosen).orEmpty()
        drawClasses(state)
        view<View>(R.id.selection).showIf(state.selected != null)
        pad.strokes = state.draft
        pad.hint = if (label.isEmpty()) "" else resources.getString(R.string.pad_hint, label)
        pad.contentDescription = resources.getString(R.string.pad_description, label)
        view<Button>(R.id.add).apply {
            text = resources.getString(R.string.add_as, label)
            isEnabled = state.draft.isNotEmpty() && state.model != null
        }
        view<View>(R.id.clear).isEnabled = state.draft.isNotEmpty()
        rename.showIf(state.isSymbol(state.chosen))
        rename.setOnClickListener { NameDialog.askToRename(window, state.chosen, label) }
        drawGallery(label, state.notes.drawings.filter { it.label == state.chosen }, state.selected)
    }

    private fun drawClasses(state: UiState) {
        val counts = state.notes.drawings.groupingBy { it.label }.eachCount()
        val chips = state.labels.indices.toList() + if (state.hasSpareClass) listOf(NEW_SYMBOL) else emptyList()
        view<ViewGroup>(R.id.classes).fill(R.layout.chip, chips) { chip, label ->
            chip as TextView
            chip.isSelected = label == state.chosen && state.selected == null
            if (label == NEW_SYMBOL) {
                chip.setText(R.string.chip_add)
                chip.contentDescription = resources.getString(R.string.chip_add_description)
                chip.setOnClickListener { NameDialog.askForNew(window) }
            } else {
                val count = counts[label] ?: 0
                chip.text = chipText(state.labels[label], count)
                chip.contentDescription =
                    resources.getString(R.string.chip_description, state.labels[label], drawings(count))
                chip.setOnClickListener { tell(Event.Choose(label)) }
            }
        }
    }

    private fun drawGallery(label: String, drawings: List<Drawing>, selected: Long?) {
        view<TextView>(R.id.gallery_title).text = resources.getString(R.string.gallery_title, label)
        view<View>(R.id.gallery_empty).showIf(drawings.isEmpty())
        view<ViewGroup>(R.id.gallery).fill(R.layout.thumbnail, drawings.withIndex().toList()) { thumbnail, (i, drawing) ->
            thumbnail as DrawingView
            thumbnail.strokes = drawing.strokes
            thumbnail.pale = drawing.heldOut
            thumbnail.isSelected = drawing.id == selected
            thumbnail.contentDescription = resources.getString(
                if (drawing.heldOut) R.string.drawing_held_out_description else R.string.drawing_description, i + 1, label,
            )
            thumbnail.setOnClickListener { tell(Event.Select(drawing.id.takeIf { it != selected })) }
        }
    }

    /** The label, and below it, smaller, how often it was taught. */
    private fun chipText(label: String, count: Int): CharSequence = SpannableStringBuilder(label).apply {
        if (count > 0) append("\n$count", RelativeSizeSpan(COUNT_SIZE), Spanned.SPAN_EXCLUSIVE_EXCLUSIVE)
    }

    private fun drawings(count: Int) = resources.getQuantityString(R.plurals.drawings, count, count)

    private companion object {
        const val NEW_SYMBOL = -1
        const val COUNT_SIZE = 0.7f
    }
}
