package org.pocketune.trainer

import kotlin.math.ln
import kotlin.math.min
import kotlin.math.sqrt

/** By what part the covariance of each class is shrunk towards its mean variance in all directions. */
sealed interface Shrinkage {
    /** As Ledoit and Wolf say, by the standardized rows of the class. */
    data object Auto : Shrinkage

    /** [part], above 0 and to 1. */
    data class By(val part: Double) : Shrinkage
}

/** A pivot that is so much smaller than the largest variance is 0 but for rounding. */
private const val SINGULAR = 2.220446049250313e-16

/**
 * A linear discriminant as a dense layer: class means under a covariance that all classes share, shrunk; the twin of the
 * host's `converter/runtime/session/discriminant.py`, and scikit-learn's `LinearDiscriminantAnalysis(solver="lsqr")`.
 *
 * @property weights of each class.
 */
internal class Discriminant private constructor(val weights: List<DoubleArray>, private val biases: DoubleArray) {
    /** The bias of a class. Throws [InputException] where float32 rounds logits of its size coarsely. */
    fun bias(at: Int): Float = ClassMeans.checkedBias(biases[at])

    companion object {
        /**
         * The discriminant of rows, whose shares are the priors.
         *
         * @param labels of the rows: places in [means], which are the means of these very rows.
         * @throws InputException there is one class, or the rows of a class do not differ enough.
         */
        fun of(rows: List<DoubleArray>, labels: List<Int>, means: List<DoubleArray>, shrinkage: Shrinkage): Discriminant {
            if (shrinkage is Shrinkage.By && !(shrinkage.part > 0 && shrinkage.part <= 1)) {
                throw InputException("shrinkage: a number above 0 and to 1, not ${shrinkage.part}")
            }
            if (means.size < 2) {
                throw InputException("shrinkage needs two classes or more, that there is something to tell apart")
            }
            val size = means[0].size
            val covariance = Array(size) { DoubleArray(size) }
            val shares = means.indices.map { place ->
                val centred = rows.filterIndexed { row, _ -> labels[row] == place }
                    .map { row -> DoubleArray(size) { row[it] - means[place][it] } }
                val share = centred.size / rows.size.toDouble()
                addShrunk(covariance, centred, shrinkage, share)
                share
            }
            factorize(covariance)
            val weights = means.map { solved(covariance, it) }
            val biases = DoubleArray(means.size) { at ->
                ln(shares[at]) - weights[at].indices.sumOf { means[at][it] * weights[at][it] } / 2
            }
            return Discriminant(weights, biases)
        }

        /** Adds a share of the shrunk covariance of rows whose mean is 0. */
        private fun addShrunk(to: Array<DoubleArray>, centred: List<DoubleArray>, shrinkage: Shrinkage, share: Double) {
            val size = to.size
            val scale = DoubleArray(size) { i ->
                if (shrinkage is Shrinkage.By) 1.0
                else sqrt(centred.sumOf { it[i] * it[i] } / centred.size).let { if (it > 0) it else 1.0 }
            }
            val rows = centred.map { row -> DoubleArray(size) { row[it] / scale[it] } }
            val covariance = Array(size) { DoubleArray(it + 1) }
            for (row in rows) for (i in 0 until size) {
                val line = covariance[i]
                val factor = row[i] / rows.size
                for (j in 0..i) line[j] += factor * row[j]
            }
            val variance = (0 until size).sumOf { covariance[it][it] } / size
            val part = if (shrinkage is Shrinkage.By) shrinkage.part else ledoitWolf(rows, covariance, variance)
            for (i in 0 until size) for (j in 0..i) {
                val shrunk = (1 - part) * covariance[i][j] + if (i == j) part * variance else 0.0
                to[i][j] += share * scale[i] * scale[j] * shrunk
            }
        }

        /** Ledoit and Wolf's shrinkage: the error of the covariance by its distance from a multiple of the unit matrix. */
        private fun ledoitWolf(rows: List<DoubleArray>, covariance: Array<DoubleArray>, variance: Double): Double {
            val size = covariance.size
            if (size == 1) return 0.0
            val squares = (0 until size).sumOf { i ->
                (0..i).sumOf { j -> (if (i == j) 1 else 2) * covariance[i][j] * covariance[i][j] }
            }
            val distance = squares - size * variance * variance
            val lengths = rows.sumOf { row -> row.sumOf { it * it }.let { it * it } }
            val error = min((lengths / rows.size - squares) / rows.size, distance)
            return if (error > 0) error / distance else 0.0
        }

        /** The lower factor of Cholesky in the place of a matrix, of which only the lower half is read. */
        private fun factorize(matrix: Array<DoubleArray>) {
            val largest = matrix.indices.maxOf { matrix[it][it] }
            for (i in matrix.indices) {
                val line = matrix[i]
                for (j in 0..i) {
                    val other = matrix[j]
                    var sum = line[j]
                    for (k in 0 until j) sum -= line[k] * other[k]
                    if (i == j && !(sum > SINGULAR * largest)) {
                        throw InputException(
                            "the features of a class do not differ enough for a covariance: pass more samples of each class " +
                                "(two at least), or a larger shrinkage",
                        )
                    }
                    line[j] = if (i == j) sqrt(sum) else sum / other[j]
                }
            }
        }

        /** What the factorized matrix takes to [right]. */
        private fun solved(lower: Array<DoubleArray>, right: DoubleArray): DoubleArray {
            val found = right.copyOf()
            for (i in found.indices) {
                for (k in 0 until i) found[i] -= lower[i][k] * found[k]
                found[i] /= lower[i][i]
            }
            for (i in found.indices.reversed()) {
                for (k in i + 1 until found.size) found[i] -= lower[k][i] * found[k]
                found[i] /= lower[i][i]
            }
            return found
        }
    }
}
