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
 * Logits are from the middle of the means on, which makes them smaller and no class likelier. The lowest bias is 0: those of
 * class means are below it, so that a discriminant is never taken for them.
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
            val shares = DoubleArray(means.size)
            val diagonal = DoubleArray(means[0].size)
            val scattered = means.indices.flatMap { place ->
                val centred = rows.filterIndexed { row, _ -> labels[row] == place }
                    .map { row -> DoubleArray(row.size) { row[it] - means[place][it] } }
                shares[place] = centred.size / rows.size.toDouble()
                shrunk(centred, shrinkage, diagonal, shares[place], rows.size)
            }
            val middle = ClassMeans.meanOf(means)
            val weights = solved(scattered, diagonal, means.map { mean -> DoubleArray(mean.size) { mean[it] - middle[it] } })
            val biases = DoubleArray(means.size) {
                ln(shares[it]) - (dot(weights[it], means[it]) + dot(weights[it], middle)) / 2
            }
            val lowest = biases.min()
            return Discriminant(weights, DoubleArray(biases.size) { biases[it] - lowest })
        }

        /**
         * The rows [centred], whose mean is 0, multiplied so that their products add up to what is left of their covariance;
         * what is added to its diagonal, times [share], goes to [diagonal]. They are some of [all] rows.
         */
        private fun shrunk(
            centred: List<DoubleArray>,
            shrinkage: Shrinkage,
            diagonal: DoubleArray,
            share: Double,
            all: Int,
        ): List<DoubleArray> {
            val scale = DoubleArray(diagonal.size) { i ->
                if (shrinkage is Shrinkage.By) 1.0
                else sqrt(centred.sumOf { it[i] * it[i] } / centred.size).let { if (it > 0) it else 1.0 }
            }
            val standard = centred.map { row -> DoubleArray(row.size) { row[it] / scale[it] } }
            val variance = standard.sumOf { dot(it, it) } / standard.size / scale.size
            val part = if (shrinkage is Shrinkage.By) shrinkage.part else ledoitWolf(standard, variance)
            for (i in diagonal.indices) diagonal[i] += share * part * variance * scale[i] * scale[i]
            val factor = sqrt((1 - part) / all)
            for (row in centred) for (i in row.indices) row[i] *= factor
            return centred
        }

        /** Ledoit and Wolf's shrinkage: the error of the covariance by its distance from a multiple of the unit matrix. */
        private fun ledoitWolf(rows: List<DoubleArray>, variance: Double): Double {
            val size = rows[0].size
            if (size == 1) return 0.0
            val squares = products(rows).sumOf { line -> 2 * dot(line, line) - line.last() * line.last() } / rows.size / rows.size
            val distance = squares - size * variance * variance
            val lengths = rows.sumOf { row -> dot(row, row).let { it * it } }
            val error = min((lengths / rows.size - squares) / rows.size, distance)
            return if (error > 0) error / distance else 0.0
        }

        /** The lower half of a matrix with the squares that the covariance of [rows] has: of rows, or of inputs if fewer. */
        private fun products(rows: List<DoubleArray>): Array<DoubleArray> =
            if (rows.size < rows[0].size) Array(rows.size) { i -> DoubleArray(i + 1) { dot(rows[i], rows[it]) } }
            else scatter(rows)

        private fun scatter(rows: List<DoubleArray>): Array<DoubleArray> {
            val covariance = Array(rows[0].size) { DoubleArray(it + 1) }
            for (row in rows) for ((i, line) in covariance.withIndex()) {
                for (j in 0..i) line[j] += row[i] * row[j]
            }
            return covariance
        }

        /**
         * What the products of [rows], added up, and [diagonal] take to each of [right]. An input whose variance is 0 beside
         * that of others, but for rounding, has no part in it: layer norms leave some of 1e-32.
         */
        private fun solved(rows: List<DoubleArray>, diagonal: DoubleArray, right: List<DoubleArray>): List<DoubleArray> {
            val variances = DoubleArray(diagonal.size) { i -> rows.sumOf { it[i] * it[i] } + diagonal[i] }
            val least = SINGULAR * variances.max()
            val varying = diagonal.indices.filter { variances[it] > diagonal.size * least }
            if (varying.isEmpty()) refuse()
            if (varying.size == diagonal.size) return solvedOfVarying(rows, diagonal, right, least)
            fun of(row: DoubleArray) = DoubleArray(varying.size) { row[varying[it]] }
            return solvedOfVarying(rows.map(::of), of(diagonal), right.map(::of), least).map { found ->
                DoubleArray(diagonal.size).also { varying.forEachIndexed { at, i -> it[i] = found[at] } }
            }
        }

        /**
         * The same of inputs that all vary; no pivot is [least] or below. Of fewer rows than inputs by the identity of
         * Woodbury, whose matrix has a row and column each: the covariance of 1,280 inputs alone has 7 MB. Uses up [rows],
         * which of many blocks have some 10 MB.
         */
        private fun solvedOfVarying(
            rows: List<DoubleArray>,
            diagonal: DoubleArray,
            right: List<DoubleArray>,
            least: Double,
        ): List<DoubleArray> {
            if (rows.size >= diagonal.size || !(diagonal.min() > least)) {
                val covariance = scatter(rows)
                for (i in diagonal.indices) covariance[i][i] += diagonal[i]
                factorize(covariance, least)
                return right.map { substituted(covariance, it) }
            }
            val scale = DoubleArray(diagonal.size) { sqrt(diagonal[it]) }
            for (row in rows) for (i in row.indices) row[i] /= scale[i]
            val beside = Array(rows.size) { i -> DoubleArray(i + 1) { dot(rows[i], rows[it]) + if (it == i) 1.0 else 0.0 } }
            factorize(beside, 0.0)
            return right.map { wanted ->
                val found = DoubleArray(wanted.size) { wanted[it] / scale[it] }
                val parts = substituted(beside, DoubleArray(rows.size) { dot(rows[it], found) })
                for ((row, part) in rows.zip(parts.asIterable())) for (i in found.indices) found[i] -= part * row[i]
                for (i in found.indices) found[i] /= scale[i]
                found
            }
        }

        /** The lower factor of Cholesky in the place of a matrix, of which only the lower half is read; no pivot is [least]. */
        private fun factorize(matrix: Array<DoubleArray>, least: Double) {
            for (i in matrix.indices) {
                val line = matrix[i]
                for (j in 0..i) {
                    val other = matrix[j]
                    var sum = line[j]
                    for (k in 0 until j) sum -= line[k] * other[k]
                    if (i == j && !(sum > least)) refuse()
                    line[j] = if (i == j) sqrt(sum) else sum / other[j]
                }
            }
        }

        private fun refuse(): Nothing = throw InputException(
            "the features of a class do not differ enough for a covariance: pass more samples of each class (two at least), " +
                "or a larger shrinkage",
        )

        /** What the factorized matrix takes to [right]. */
        private fun substituted(lower: Array<DoubleArray>, right: DoubleArray): DoubleArray {
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

        private fun dot(a: DoubleArray, b: DoubleArray): Double {
            var sum = 0.0
            for (i in a.indices) sum += a[i] * b[i]
            return sum
        }
    }
}
