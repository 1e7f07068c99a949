package org.pocketune.trainer

/** The numbers of one tensor, or of one row of it, in row-major order. The arrays are not copied: do not change them. */
sealed class Values {
    abstract val size: Int

    class Floats(val array: FloatArray) : Values() {
        override val size get() = array.size
    }

    class Ints(val array: IntArray) : Values() {
        override val size get() = array.size
    }

    class Bools(val array: BooleanArray) : Values() {
        override val size get() = array.size
    }
}

/**
 * One row to learn from.
 *
 * @property inputs each input of the model by name, one row of it.
 * @property target what the model should answer: one label, one-hot numbers or values, as the loss takes them.
 * @property weight how much it counts, from 0 on.
 */
class Sample(val inputs: Map<String, Values>, val target: Values, val weight: Float = 1f) {
    /** One input named `x` and a label. */
    constructor(x: FloatArray, label: Int, weight: Float = 1f) :
        this(mapOf("x" to Values.Floats(x)), Values.Ints(intArrayOf(label)), weight)

    /** The label, where the target is one. */
    val label: Int? get() = (target as? Values.Ints)?.array?.singleOrNull()
}

/**
 * How well the model does on some samples.
 *
 * @property loss the mean by weight.
 * @property accuracy the share of right answers by weight; null where the program does not count them.
 */
data class Evaluation(val loss: Double, val accuracy: Double?) {
    /** Whether [other] is as good or better: by accuracy, and by loss where there is none. */
    fun isMatchedBy(other: Evaluation): Boolean =
        if (accuracy != null && other.accuracy != null) other.accuracy >= accuracy else other.loss <= loss
}
