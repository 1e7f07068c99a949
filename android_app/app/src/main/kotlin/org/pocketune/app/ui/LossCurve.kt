package org.pocketune.app.ui

import android.content.Context
import android.graphics.Canvas
import android.graphics.Paint
import android.graphics.Path
import android.util.AttributeSet
import android.view.View
import org.pocketune.app.R

/** The loss of every step so far, and its running mean, over all the steps to come. */
class LossCurve(context: Context, attributes: AttributeSet) : View(context, attributes) {
    private val density = resources.displayMetrics.density
    private val grid = paint(R.color.outline, 1f)
    private val faint = paint(R.color.primary, 1f).apply { alpha = 90 }
    private val bold = paint(R.color.primary, 2.5f)
    private var losses: List<Float> = emptyList()
    private var from = 0
    private var steps = 0

    /** [losses] of the steps from [from] on, of [steps] in all. */
    fun show(losses: List<Float>, from: Int, steps: Int) {
        this.losses = losses
        this.from = from
        this.steps = steps
        contentDescription = if (losses.isEmpty()) resources.getString(R.string.loss_empty_description)
        else resources.run { getString(R.string.loss_description, decimals(losses.first(), 2), decimals(losses.last(), 2)) }
        invalidate()
    }

    override fun onDraw(canvas: Canvas) {
        val inset = bold.strokeWidth
        for (i in 0..GRID_LINES) {
            val y = inset + (height - 2 * inset) * i / GRID_LINES
            canvas.drawLine(0f, y, width.toFloat(), y, grid)
        }
        val highest = losses.maxOrNull()?.coerceAtLeast(LEAST_RANGE) ?: return
        canvas.drawPath(curve(losses, highest, inset), faint)
        canvas.drawPath(curve(runningMean(), highest, inset), bold)
    }

    private fun curve(values: List<Float>, highest: Float, inset: Float) = Path().apply {
        values.forEachIndexed { i, value ->
            val x = inset + (width - 2 * inset) * (from + i) / (steps - 1).coerceAtLeast(1)
            val y = height - inset - (height - 2 * inset) * value / highest
            if (i == 0) moveTo(x, y) else lineTo(x, y)
        }
    }

    private fun runningMean(): List<Float> {
        var mean = losses.first()
        return losses.map { loss ->
            mean += (loss - mean) * MEAN_SHARE
            mean
        }
    }

    private fun paint(colour: Int, dp: Float) = Paint(Paint.ANTI_ALIAS_FLAG).apply {
        color = context.getColor(colour)
        style = Paint.Style.STROKE
        strokeWidth = dp * density
        strokeJoin = Paint.Join.ROUND
        strokeCap = Paint.Cap.ROUND
    }

    private companion object {
        const val GRID_LINES = 4
        const val LEAST_RANGE = 0.1f
        const val MEAN_SHARE = 0.15f
    }
}
