package org.pocketune.trainer

import java.util.Locale
import kotlin.math.abs
import kotlin.math.exp
import kotlin.math.ln
import kotlin.math.ln1p

/** Powers of two that are tried for the sharpness, beside the mean squared distance of a row to its class. */
private const val TRIED = 12

/** By how much sharpnesses of rows may differ that are one but for rounding to float32. */
private const val ROUNDING = 1e-3

/** Biases are no larger than this: float32 rounds logits of a million to a sixteenth. */
private const val LARGEST_BIAS = 1_048_576.0

/**
 * Nearest class means as a dense layer: logits -[sharpness] / 2 (|x - mean|^2 + farther), but for what all classes have in
 * common; the twin of the host's `converter/runtime/session/class_means.py`.
 *
 * @property means of each class.
 * @property farther what is added to the squared distance of a class, whose mean is of few samples.
 */
internal class ClassMeans(val means: List<DoubleArray>, val sharpness: Double, val farther: DoubleArray) {
    /** The weights of a class. */
    fun weights(at: Int) = FloatArray(means[at].size) { (sharpness * means[at][it]).toFloat() }

    /** Its bias. Throws [InputException] where logits would be so large that float32 rounds them coarsely. */
    fun bias(at: Int): Float = checkedBias(-sharpness / 2 * (means[at].sumOf { it * it } + farther[at]))

    companion object {
        /** A bias as float32. Throws [InputException] where that rounds logits of its size coarsely. */
        fun checkedBias(bias: Double): Float {
            if (!(abs(bias) <= LARGEST_BIAS)) {
                throw InputException(
                    "the means of the classes are too large beside their differences: the last layer would have a bias of " +
                        "%.3g, and float32 is too coarse beyond %,.0f. ".format(Locale.ROOT, bias, LARGEST_BIAS) +
                        "Normalise the input of the last layer, as a batch norm or layer norm does",
                )
            }
            return bias.toFloat()
        }

        /** The mean of rows. */
        fun meanOf(rows: List<DoubleArray>) = DoubleArray(rows[0].size) { i -> rows.sumOf { it[i] } / rows.size }

        /**
         * The sharpness with which the softmax of a row says its class best, the row left out of its class' mean: a power
         * of two over the mean squared distance of a row to its class. Rows that are alone in their class have no part.
         *
         * @param labels of the rows: places in [means], which for these are the means of these very rows.
         */
        fun sharpnessOf(rows: List<DoubleArray>, labels: List<Int>, means: List<DoubleArray>): Double {
            val counts = labels.groupingBy { it }.eachCount()
            val apart = rows.indices.filter { counts.getValue(labels[it]) > 1 }
            val distances = apart.map { row ->
                val (count, own) = counts.getValue(labels[row]) to labels[row]
                DoubleArray(means.size) { squared(rows[row], means[it]) * if (it == own) leftOut(count) else 1.0 }
            }
            val own = apart.indices.map { distances[it][labels[apart[it]]] }
            val spread = if (own.isEmpty()) 0.0 else own.average()
            if (spread == 0.0) {
                val middle = meanOf(means)
                // Of one class alone: any will do that is of its size.
                val between = means.map { squared(it, middle) }.average().takeIf { it > 0 }
                    ?: means.map { mean -> mean.sumOf { it * it } }.average()
                return if (between > 0) TRIED / between else 1.0
            }
            return (0 until TRIED).map { (1 shl it) / spread }.minBy { tried ->
                apart.indices.map { row ->
                    val scores = distances[row].map { -tried / 2 * it }
                    val top = scores.max()
                    ln(scores.sumOf { exp(it - top) }) + top + tried / 2 * own[row]
                }.average()
            }
        }

        /** By how much farther a class is than the mean of its few samples: the log of 1 + 1 / n times their spread. */
        fun fartherOf(rows: List<DoubleArray>): Double {
            if (rows.size < 2) return 0.0
            val mean = meanOf(rows)
            return ln1p(1.0 / rows.size) * rows.map { squared(it, mean) }.average() * leftOut(rows.size)
        }

        /**
         * The class means that a dense layer was made of; null where it is another, as after a step.
         *
         * @param whole which classes are no farther than their means: they tell the sharpness.
         */
        fun of(weights: List<FloatArray>, biases: FloatArray, whole: List<Boolean>): ClassMeans? {
            val squares = weights.map { row -> row.sumOf { it.toDouble() * it } }
            val tells = weights.indices.filter { whole[it] && (squares[it] > 0 || biases[it] != 0f) }
            if (tells.isEmpty()) {
                val isNothing = weights.isNotEmpty() && squares.all { it == 0.0 } && biases.all { it == 0f }
                return if (isNothing) ClassMeans(weights.map(::doubles), 1.0, DoubleArray(weights.size)) else null
            }
            if (tells.any { biases[it] >= 0 }) return null
            val found = tells.map { squares[it] / (-2.0 * biases[it]) }
            val sharpness = found.sorted().let { (it[(it.size - 1) / 2] + it[it.size / 2]) / 2 }
            if (sharpness == 0.0 || found.any { abs(it / sharpness - 1) > ROUNDING }) return null
            val means = weights.map { row -> DoubleArray(row.size) { row[it] / sharpness } }
            val lengths = means.map { mean -> mean.sumOf { it * it } }
            val farther = DoubleArray(means.size) { -2.0 * biases[it] / sharpness - lengths[it] }
            return if (farther.any { it < -ROUNDING * lengths.max() }) null else ClassMeans(means, sharpness, farther)
        }

        private fun doubles(row: FloatArray) = DoubleArray(row.size) { row[it].toDouble() }

        private fun squared(a: DoubleArray, b: DoubleArray) = a.indices.sumOf { (a[it] - b[it]) * (a[it] - b[it]) }

        /** What a squared distance to a mean of so many is without the row itself in it. */
        private fun leftOut(count: Int): Double = (count.toDouble() / (count - 1)).let { it * it }
    }
}
