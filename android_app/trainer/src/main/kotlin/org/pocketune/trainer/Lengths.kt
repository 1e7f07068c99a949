package org.pocketune.trainer

/** Of `train_length_64` and the like `train` and 64; of any other name of a signature itself and null. */
internal fun atLength(name: String): Pair<String, Int?> =
    Regex("(train|accumulate|gradients|evaluate|infer)_length_([1-9][0-9]{0,8})").matchEntire(name)
        ?.let { it.groupValues[1] to it.groupValues[2].toInt() } ?: (name to null)

/** Tokens of a row of a signature, 0 where its first input has none. */
internal val Signature.tokens: Int get() = taking(Role.INPUT).firstOrNull()?.shape?.getOrNull(1) ?: 0

/** The signature with so many tokens in the place of its own. */
internal fun Signature.ofTokens(count: Int): Signature {
    val roles = setOf(Role.INPUT, Role.TARGET, Role.OUTPUT)
    fun changed(spec: TensorSpec) =
        if (spec.role !in roles || spec.shape.getOrNull(1) != tokens) spec
        else spec.copy(shape = listOf(spec.shape[0], count) + spec.shape.drop(2))
    return copy(inputs = inputs.map(::changed), outputs = outputs.map(::changed))
}

/**
 * The signatures that stand for one, by the tokens of a row that each takes, the fewest first; none for a program of one
 * length.
 */
internal fun Manifest.byLength(signature: String): Map<Int, String> {
    val shorter = signatures.keys.filter { atLength(it).run { first == signature && second != null } }
    return if (shorter.isEmpty()) emptyMap() else (shorter + signature).associateBy { signatures.getValue(it).tokens }.toSortedMap()
}

/**
 * The signature of the fewest tokens that hold what is asked for of some rows, and the rows cut or padded to these.
 *
 * What stands behind the last label of a row changes nothing before it; of rows without labels all tokens are asked for.
 */
internal fun Manifest.ofFewestTokens(signature: String, batch: Batch): Pair<String, Batch> {
    val known = byLength(signature).ifEmpty { return signature to batch }
    val asked = batch.rows.maxOf { row -> row.targets.values.maxOfOrNull { it.labelled } ?: row.tokens }
    val (tokens, name) = known.entries.first { it.key >= asked }
    return name to Batch(batch.rows.map { it.ofTokens(tokens) }, batch.weights)
}

/** Tokens of a row of a program of several lengths. */
internal val Sample.tokens: Int get() = inputs.values.first().size

/** The first numbers, and behind the last one others. */
internal fun Values.fitted(count: Int, other: Int): Values = when (this) {
    is Values.Ints -> Values.Ints(IntArray(count) { array.getOrElse(it) { other } })
    is Values.Floats -> Values.Floats(FloatArray(count) { array.getOrElse(it) { other.toFloat() } })
    is Values.Bools -> Values.Bools(BooleanArray(count) { array.getOrElse(it) { false } })
}

/** How many labels there are up to the last one that is not left out. */
private val Values.labelled: Int get() = (this as? Values.Ints)?.array?.indexOfLast { it >= 0 }?.plus(1) ?: size

private fun Sample.ofTokens(tokens: Int) =
    Sample(inputs.mapValues { it.value.fitted(tokens, 0) }, targets.mapValues { it.value.fitted(tokens, LEFT_OUT) }, weight)

/** A label that no loss counts. */
private const val LEFT_OUT = -1
