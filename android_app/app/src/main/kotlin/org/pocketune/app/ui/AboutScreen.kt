package org.pocketune.app.ui

import android.text.format.Formatter
import android.view.ViewGroup
import android.widget.TextView
import org.pocketune.app.R
import org.pocketune.app.core.Model
import org.pocketune.app.core.UiState
import org.pocketune.trainer.Accelerator

/** The manifest in words. */
class AboutScreen(parent: ViewGroup) : ScreenView(parent, R.layout.about) {
    override fun draw(state: UiState) {
        val facts = state.model?.let(::facts) ?: listOf(R.string.about_title to resources.getString(R.string.about_unavailable))
        val privacy = R.string.about_privacy_title to resources.getString(R.string.about_privacy)
        view<ViewGroup>(R.id.facts).fill(R.layout.fact, facts + privacy) { card, (name, text) ->
            card.findViewById<TextView>(R.id.fact_name).setText(name)
            card.findViewById<TextView>(R.id.fact_text).text = text
        }
    }

    private fun facts(model: Model): List<Pair<Int, String>> = listOf(
        R.string.app_name to resources.getString(
            R.string.about_what, model.name, model.description.labels.joinToString(" "), model.description.spare,
        ),
        R.string.about_trains_title to resources.getString(
            R.string.about_trains, model.trained?.let { resources.decimals(it, 0) } ?: unknown,
            layers(model), model.optimizer,
        ),
        R.string.about_sizes_title to resources.getString(
            R.string.about_sizes, size(model.fileBytes), size(model.stateBytes), model.arenaBytes?.let(::size) ?: unknown,
        ),
        R.string.about_runs_title to runs(model),
    ) + listOfNotNull(model.card.ifEmpty { null }?.let { R.string.about_card_title to lines(it) })

    private fun lines(card: Map<String, String>) = card.entries.joinToString("\n") { (name, text) -> "$name: $text" }

    private val unknown get() = resources.getString(R.string.unknown)

    /** The layers that learn, and of a layer that does so in part how much of it. */
    private fun layers(model: Model): String =
        model.layers.groupBy({ layerOf(it.first) }, { it.second }).entries.joinToString { (layer, shares) ->
            val least = shares.min()
            if (least == 1.0) layer else resources.getString(R.string.about_layer_part, layer, Math.round(least * 100))
        }

    /** The layer that a weight's name tells: its parts are parted by slashes, in a model from PyTorch by dots. */
    private fun layerOf(weight: String) = weight.substringBeforeLast(if ('/' in weight) '/' else '.')

    private fun runs(model: Model): String = with(model.runtime) {
        val where = resources.getString(R.string.about_runs, runtime, processor(runs), detail)
        val why = fallback ?: return where
        where + "\n" + resources.getString(R.string.about_fallback, processor(asked), why)
    }

    private fun processor(accelerator: Accelerator) =
        resources.getString(
            when (accelerator) {
                Accelerator.CPU -> R.string.cpu
                Accelerator.GPU -> R.string.gpu
                Accelerator.NPU -> R.string.npu
            },
        )

    private fun size(bytes: Long) = Formatter.formatShortFileSize(root.context, bytes)
}
