package org.pocketune.trainer

import kotlin.math.abs

/** By how much a probability may miss its bounds: what rounding does. */
private const val SLACK = 1e-6f

/** The numbers that a loss takes, in words, and whether one is such; as the host has it (converter/runtime/targets.py). */
internal class Numbers private constructor(private val words: String, private val fits: (Float) -> Boolean) {
    /** What is wrong with a target, in words; null when nothing is. */
    fun problem(loss: String, target: Values): String? {
        val numbers = when (target) {
            is Values.Floats -> target.array
            is Values.Ints -> FloatArray(target.size) { target.array[it].toFloat() }
            is Values.Bools -> return null
        }
        return numbers.firstOrNull { !fits(it) }?.let { "$loss takes $words, and this holds $it" }
    }

    companion object {
        private val PROBABILITIES = Numbers("numbers from 0 to 1") { it >= -SLACK && it <= 1 + SLACK }
        private val SHARES = Numbers("numbers from 0 on, one a class") { it >= -SLACK }
        private val AMOUNTS = Numbers("numbers from 0 on") { it >= -SLACK }
        private val SIGNS = Numbers("-1 or 1 (for labels that are 0 or 1 pass 2 * y - 1)") { abs(it) == 1f }
        private val TAKEN = mapOf(
            "binary_crossentropy" to PROBABILITIES,
            "binary_focal_crossentropy" to PROBABILITIES,
            "categorical_crossentropy" to SHARES,
            "categorical_focal_crossentropy" to SHARES,
            "categorical_hinge" to PROBABILITIES,
            "dice" to PROBABILITIES,
            "hinge" to SIGNS,
            "msle" to AMOUNTS,
            "poisson" to AMOUNTS,
            "squared_hinge" to SIGNS,
            "tversky" to PROBABILITIES,
        )

        /** Those of a loss; null where it takes any. */
        fun of(loss: String?): Numbers? = TAKEN[loss]
    }
}

/** Whether [label] is one of those that a target holds. */
internal fun TargetLabels.fits(label: Int): Boolean = label == ignored || label < count && (masked || label >= 0)
