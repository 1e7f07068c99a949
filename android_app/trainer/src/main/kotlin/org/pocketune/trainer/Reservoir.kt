package org.pocketune.trainer

/** java.util.Random, whose [state] can be kept: it goes on from there. */
internal class Draws(var state: Long) {
    /** A number from 0 to below [bound]. */
    fun next(bound: Int): Int {
        while (true) {
            state = (state * MULTIPLIER + INCREMENT) and MASK
            val bits = (state ushr BITS - 31).toInt()
            if (bound and (bound - 1) == 0) return (bound.toLong() * bits shr 31).toInt()
            val drawn = bits % bound
            // Not of the last, incomplete run of numbers: the sum overflows there.
            if (bits - drawn + (bound - 1) >= 0) return drawn
        }
    }

    companion object {
        private const val MULTIPLIER = 0x5DEECE66DL
        private const val INCREMENT = 0xBL
        private const val BITS = 48
        private const val MASK = (1L shl BITS) - 1

        fun seeded(seed: Long) = Draws((seed xor MULTIPLIER) and MASK)
    }
}

/**
 * What is known of the rows that a memory keeps, beside their numbers.
 *
 * @property capacity how many rows it has room for.
 * @property labels the class of each.
 * @property seen how many rows of each class came.
 * @property full which classes had the most rows at some time since there was no room left.
 */
internal class Reservoir(val capacity: Int, val labels: IntArray, val seen: IntArray, val full: BooleanArray) {
    constructor(capacity: Int, classes: Int) : this(capacity, IntArray(0), IntArray(classes), BooleanArray(classes))

    /** One without the rows of a class, as if none of it had come. */
    fun without(label: Int) = Reservoir(
        capacity,
        labels.filter { it != label }.toIntArray(),
        seen.copyOf().also { it[label] = 0 },
        full.copyOf().also { it[label] = false },
    )
}

/**
 * Class-balanced reservoir sampling (CBRS of Chrysakis and Moens, ICML 2020, algorithm 1): which rows of an endless stream
 * a bounded memory keeps. Of one class it is the plain reservoir.
 */
internal class Balancing(reservoir: Reservoir) {
    private val capacity = reservoir.capacity
    private val labels = ArrayList(reservoir.labels.asList())
    private val seen = reservoir.seen.copyOf()
    private val full = reservoir.full.copyOf()
    private val counts = IntArray(seen.size).also { for (label in reservoir.labels) it[label]++ }

    /** The place that a row of a class takes, that of a row that it replaces or the next; null: it is left. */
    fun offer(label: Int, draws: Draws): Int? {
        if (seen[label] < Int.MAX_VALUE) seen[label]++
        val place = if (labels.size < capacity) labels.size else place(label, draws) ?: return null
        if (place < labels.size) counts[labels[place]]-- else labels.add(label)
        labels[place] = label
        counts[label]++
        if (labels.size == capacity) {
            val most = counts.max()
            for (each in counts.indices) if (counts[each] == most) full[each] = true
        }
        return place
    }

    private fun place(label: Int, draws: Draws): Int? {
        if (full[label]) {
            if (draws.next(seen[label]) >= counts[label]) return null
            val kept = labels.indices.filter { labels[it] == label }
            return kept[draws.next(kept.size)]
        }
        val most = counts.max()
        val largest = labels.indices.filter { counts[labels[it]] == most }
        return largest[draws.next(largest.size)]
    }

    /** The reservoir after all that was offered. */
    fun result() = Reservoir(capacity, labels.toIntArray(), seen.copyOf(), full.copyOf())
}
