package org.pocketune.app.ui

import android.view.View
import android.view.ViewGroup
import android.widget.TextView
import org.pocketune.app.R
import org.pocketune.app.core.Answer
import org.pocketune.app.core.Event
import org.pocketune.app.core.UiState

/** Write, and see both models' answers. */
class TryScreen(parent: ViewGroup, tell: (Event) -> Unit) : ScreenView(parent, R.layout.try_it) {
    private val pad = view<StrokePad>(R.id.try_pad)

    init {
        pad.onStroke = { tell(Event.Try(it)) }
        pad.hint = resources.getString(R.string.try_pad_hint)
        pad.contentDescription = resources.getString(R.string.try_pad_description)
        onClick(R.id.try_clear) { tell(Event.ClearTrial) }
    }

    override fun draw(state: UiState) {
        pad.strokes = state.trial.strokes
        view<View>(R.id.try_clear).isEnabled = state.trial.strokes.isNotEmpty()
        val models = listOf(R.string.original to state.trial.original, R.string.yours to state.trial.personal)
        view<ViewGroup>(R.id.answers).fill(R.layout.answer, models) { card, (who, answers) ->
            card.draw(resources.getString(who), answers, state.labels)
            card.alpha = if (state.trial.isCurrent || state.trial.strokes.isEmpty()) 1f else STALE
        }
    }

    private fun View.draw(who: String, answers: List<Answer>, labels: List<String>) {
        val best = answers.firstOrNull()
        findViewById<TextView>(R.id.answer_who).text = who
        findViewById<TextView>(R.id.answer_best).text = best?.let { labels[it.label] } ?: resources.getString(R.string.unknown)
        findViewById<TextView>(R.id.answer_rest).text =
            answers.take(SHOWN).joinToString("\n") { "${labels[it.label]}   ${percent(it)}" }
        contentDescription = best?.let {
            resources.getString(R.string.answer_description, who, labels[it.label], Math.round(it.sureness * 100))
        }
    }

    private fun percent(answer: Answer) = resources.getString(R.string.percent, Math.round(answer.sureness * 100))

    private companion object {
        const val SHOWN = 3
        const val STALE = 0.6f
    }
}
