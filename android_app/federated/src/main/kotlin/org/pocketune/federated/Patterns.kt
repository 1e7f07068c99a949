package org.pocketune.federated

import org.pocketune.trainer.ClassHead
import org.pocketune.trainer.InputException

/**
 * The names that patterns match, as Python's `fnmatch.fnmatchcase` reads them: `*` (also over slashes), `?`, `[a-z]`, `[!a-z]`.
 *
 * @throws InputException one matches nothing, or all of them match everything, so that nothing is left to share.
 */
internal fun personalIn(names: Collection<String>, patterns: List<String>): Set<String> {
    val read = patterns.map { it to regexOf(it) }
    read.firstOrNull { (_, regex) -> names.none(regex::matches) }?.let { (pattern, _) ->
        throw InputException("personal: '$pattern' matches no trained tensor. Trained are ${names.joinToString()}")
    }
    val found = names.filter { name -> read.any { (_, regex) -> regex.matches(name) } }.toSet()
    if (found.isNotEmpty() && found.size == names.size) {
        throw InputException("personal: ${patterns.joinToString()} match all that trains, so nothing is shared")
    }
    return found
}

/**
 * The tensor with the names of classes that stays with their layer; null: there is none, or the layer does not stay.
 *
 * @throws InputException half of the layer stays.
 */
internal fun namesAtHome(head: ClassHead?, isOwn: (String) -> Boolean): String? {
    val names = head?.names ?: return null
    val stay = listOf(head.kernel, head.bias).filter(isOwn)
    if (stay.size == 1) {
        throw InputException(
            "personal: ${stay.single()} stays here and the rest of the last layer does not, which has room for classes: a class " +
                "that is added here is in ${head.kernel} and ${head.bias}, so both stay or none",
        )
    }
    return names.takeIf { stay.isNotEmpty() }
}

/** A pattern as a regular expression of a whole name. */
internal fun regexOf(pattern: String): Regex {
    val letters = pattern.codePoints().toArray()
    val said = StringBuilder("(?s)")
    var at = 0
    while (at < letters.size) {
        val end = if (letters[at] == '['.code) endOfSet(letters, at) else -1
        when {
            end >= 0 -> said.append(setOf(letters.copyOfRange(at + 1, end)))
            letters[at] == '*'.code -> said.append(".*")
            letters[at] == '?'.code -> said.append('.')
            else -> said.append(exactly(letters[at]))
        }
        at = if (end >= 0) end + 1 else at + 1
    }
    return Regex(said.toString())
}

/** Where the set that begins at a bracket ends; -1: the bracket stands for itself. */
private fun endOfSet(letters: IntArray, bracket: Int): Int {
    var first = bracket + 1
    if (first < letters.size && letters[first] == '!'.code) first++
    // A bracket that comes first is one of the set.
    return (first + 1 until letters.size).firstOrNull { letters[it] == ']'.code } ?: -1
}

private fun setOf(letters: IntArray): String {
    val isNot = letters.first() == '!'.code
    val ranges = StringBuilder()
    var at = if (isNot) 1 else 0
    while (at < letters.size) {
        val isRange = at + 2 < letters.size && letters[at + 1] == '-'.code
        val last = if (isRange) letters[at + 2] else letters[at]
        // What runs backwards is empty.
        if (letters[at] <= last) ranges.append(exactly(letters[at])).append('-').append(exactly(last))
        at += if (isRange) 3 else 1
    }
    return if (ranges.isEmpty()) (if (isNot) "." else "(?!)") else "[${if (isNot) "^" else ""}$ranges]"
}

private fun exactly(letter: Int): String = "\\x{${Integer.toHexString(letter)}}"
