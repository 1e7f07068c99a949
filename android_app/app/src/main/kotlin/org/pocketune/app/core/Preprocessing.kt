package org.pocketune.app.core

import kotlin.math.max
import kotlinx.serialization.Serializable

/**
 * How strokes become the image that the model knows, as scripts/app_assets/strokes.py describes and does it; both do
 * the same operations in the same order and agree to the last bit.
 *
 * @property kind names the description; [Description] refuses another.
 * @property size pixels of a side of the image.
 * @property cells fine cells of a side of a pixel.
 * @property pen half the width of the pen, in fine cells.
 */
@Serializable
data class Preprocessing(val kind: String, val size: Int, val cells: Int, val pen: Double) {
    init {
        require(size in 1..MOST && cells in 1..MOST && pen >= 0 && 2 * pen < size * cells) { "preprocessing: $this" }
    }

    /** Ink 1 on paper 0, row by row, `size * size` numbers, of a drawing of at least one point. */
    fun image(strokes: List<Stroke>): FloatArray {
        val points = strokes.flatten()
        require(points.isNotEmpty()) { "a drawing has at least one point" }
        val left = points.minOf { it.x }
        val right = points.maxOf { it.x }
        val top = points.minOf { it.y }
        val bottom = points.maxOf { it.y }
        val side = size * cells
        val larger = max(right - left, bottom - top)
        val scale = if (larger > 0) (side - 1 - 2 * pen) / larger else 0.0
        val centre = (side - 1) / 2.0
        val middleX = (left + right) / 2
        val middleY = (top + bottom) / 2
        val inked = BooleanArray(side * side)
        for (stroke in strokes) {
            var a: Point? = null
            for (point in stroke) {
                val b = Point((point.x - middleX) * scale + centre, (point.y - middleY) * scale + centre, 0)
                ink(inked, side, a ?: b, b)
                a = b
            }
        }
        return shares(inked, side)
    }

    private fun ink(inked: BooleanArray, side: Int, a: Point, b: Point) {
        for (row in 0 until side) for (column in 0 until side) {
            if (squaredDistance(column.toDouble(), row.toDouble(), a, b) <= pen * pen) inked[row * side + column] = true
        }
    }

    private fun shares(inked: BooleanArray, side: Int): FloatArray {
        val counts = IntArray(size * size)
        for (row in 0 until side) for (column in 0 until side) {
            if (inked[row * side + column]) counts[row / cells * size + column / cells]++
        }
        return FloatArray(counts.size) { (counts[it] / (cells * cells).toDouble()).toFloat() }
    }

    /** Of the point (x, y) from the line between a and b. */
    private fun squaredDistance(x: Double, y: Double, a: Point, b: Point): Double {
        val dx = b.x - a.x
        val dy = b.y - a.y
        val length = dx * dx + dy * dy
        val along = if (length > 0) (((x - a.x) * dx + (y - a.y) * dy) / length).coerceIn(0.0, 1.0) else 0.0
        val ex = x - (a.x + along * dx)
        val ey = y - (a.y + along * dy)
        return ex * ex + ey * ey
    }

    private companion object {
        const val MOST = 256
    }
}
