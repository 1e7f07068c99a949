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
 * @property targets what the model should answer: one label, one-hot numbers or values, as the loss takes them; several
 *   by the name that each has in the program behind `y/`.
 * @property weight how much it counts, from 0 on.
 */
class Sample(val inputs: Map<String, Values>, val targets: Map<String, Values>, val weight: Float = 1f) {
    /** One target. */
    constructor(inputs: Map<String, Values>, target: Values, weight: Float = 1f) :
        this(inputs, mapOf(TARGET to target), weight)

    /** One input named `x` and a label. */
    constructor(x: FloatArray, label: Int, weight: Float = 1f) :
        this(mapOf("x" to Values.Floats(x)), Values.Ints(intArrayOf(label)), weight)

    /** One input named `x` and numbers: a one-hot row for `categorical_crossentropy`, values for a regression. */
    constructor(x: FloatArray, y: FloatArray, weight: Float = 1f) :
        this(mapOf("x" to Values.Floats(x)), Values.Floats(y), weight)

    /** The only target; null where there are several. */
    val target: Values? get() = targets.values.singleOrNull()

    /** Labels of the target, or the classes that have a share of it. */
    internal fun classes(): List<Int> = when (val given = target) {
        is Values.Ints -> given.array.filter { it >= 0 }
        is Values.Floats -> given.array.indices.filter { given.array[it] > 0 }
        else -> emptyList()
    }

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
