package org.pocketune.trainer

/** What is wrong with a target for its loss, in words; null when nothing is. */
internal fun TargetLabels.problem(loss: String, target: Values): String? =
    when (target) {
        is Values.Ints -> target.array.firstOrNull { !fits(it) }?.let {
            "labels go from 0 to ${(count ?: 0) - 1} in this program, and this is $it"
        }
        is Values.Floats -> target.array.firstOrNull { !fits(it) }?.let { "$loss takes $words, and this holds $it" }
        is Values.Bools -> null
    }

/** Whether [label] is one of those that a target holds, or that its loss leaves out. */
internal fun TargetLabels.fits(label: Int): Boolean =
    label == ignored || (count == null || label < count) && (masked || label >= 0)

private fun TargetLabels.fits(number: Float): Boolean {
    if (only.isNotEmpty()) return only.any { it.toFloat() == number }
    return (least == null || number >= least - SLACK) && (most == null || number <= most + SLACK)
}

/** Which numbers are such. */
private val TargetLabels.words: String
    get() {
        val said = when {
            only.isNotEmpty() -> only.joinToString(" or ", transform = ::plain)
            most != null -> "numbers ${least?.let { "from ${plain(it)} " }.orEmpty()}to ${plain(most)}"
            least != null -> "numbers from ${plain(least)} on"
            else -> "numbers"
        }
        return said + (if (count == null) "" else ", one a class") + (if (advice.isEmpty()) "" else " ($advice)")
    }

private fun plain(number: Double): String = if (number % 1 == 0.0) number.toLong().toString() else number.toString()
