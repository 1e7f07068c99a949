package org.pocketune.trainer

import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive

/** A field of a file that is not trusted is beyond its limits: what each of these throws. */
internal class FieldException(message: String) : Exception(message)

/** A number from [least] to [most]; an Int is further from 0 than the largest nowhere. */
internal fun checkNumber(where: String, number: Number, least: Double? = null, most: Double? = null) {
    val (from, to) = if (number is Int) (least ?: -MAX_INTEGER) to (most ?: MAX_INTEGER) else least to most
    val isWithin = (from == null || number.toDouble() >= from) && (to == null || number.toDouble() <= to)
    if (!isWithin) refuse("$where: $number is not from $from to $to")
}

/** [text] is as a whole what [pattern] says. */
internal fun checkPattern(where: String, text: String, pattern: String) {
    if (!Regex(pattern).matches(text)) refuse("$where: expected $pattern, got '${text.take(MOST_TOLD)}'")
}

/** A part of an enumeration. */
internal fun <T> checkOneOf(where: String, value: T, values: Set<T>) {
    if (value !in values) refuse("$where: expected one of $values, got $value")
}

/** So many items of a list. */
internal fun checkCount(where: String, count: Int, least: Double = 0.0, most: Double = MAX_INTEGER) {
    if (count < least || count > most) refuse("$where: there are $count")
}

/** No name stands twice. */
internal fun checkUnique(where: String, names: List<String>) {
    val seen = HashSet<String>()
    names.firstOrNull { !seen.add(it) }?.let { refuse("$where: '$it' stands there twice") }
}

/** A shape has [rank] axes or more, of elements of so many bytes. */
internal fun checkShape(where: String, shape: List<Int>, rank: Int, elementBytes: Int) {
    if (shape.size < rank || shape.any { it < 1 } || shape.product() > MAX_TENSOR_BYTES / elementBytes) {
        refuse("$where: bad shape ${shape.take(MOST_AXES)}")
    }
}

/** The name of a loss, or one by output. */
internal fun checkLoss(where: String, loss: JsonElement) {
    val each = (loss as? JsonObject)?.values ?: listOf(loss)
    if (each.isEmpty() || each.any { it !is JsonPrimitive || !it.isString }) {
        refuse("$where: expected a name, or one by output")
    }
}

private const val MAX_INTEGER = Int.MAX_VALUE.toDouble()
private const val MOST_TOLD = 60
private const val MOST_AXES = 9

private fun refuse(problem: String): Nothing = throw FieldException(problem)
