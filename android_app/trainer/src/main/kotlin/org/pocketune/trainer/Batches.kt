package org.pocketune.trainer

import java.util.Random
import kotlin.math.ceil
import kotlin.math.roundToInt

/**
 * Rows of one step or of one call, at most as many as that takes, and how much each counts.
 *
 * @property places of an epoch's rows among all of the training.
 */
internal class Batch(val rows: List<Sample>, val weights: List<Float>, val places: List<Int> = emptyList()) {
    val weight: Double = weights.sumOf { it.toDouble() }

    fun rowOrFirst(i: Int): Sample = rows.getOrElse(i) { rows[0] }

    /** The rows by [size], the last ones fewer. */
    fun parts(size: Int): List<Batch> = rows.indices.chunked(size) { part ->
        Batch(part.map { rows[it] }, part.map { weights[it] })
    }

    /** The same rows, each with its share of the weight of all. */
    fun asShares() = Batch(rows, weights.map { (it / weight).toFloat() })
}

/** Rows in their order, a batch at a time. Rows of weight 0 are left out. */
internal fun List<Sample>.inBatches(size: Int, weight: (Sample) -> Float = Sample::weight): List<Batch> =
    filter { it.weight > 0 }.chunked(size) { rows -> Batch(rows.toList(), rows.map(weight)) }

/** Rows in their order by the signatures that infer them: the largest for whole calls, then what just holds the rest. */
internal fun List<Sample>.byInference(manifest: Manifest): List<Pair<String, Batch>> {
    // Rows that influence each other are computed as many as they are, or as `infer` takes them.
    val anyNumber = manifest.infer.mixing == null || size in manifest.infers
    val known = if (anyNumber) manifest.infers else manifest.infers.filterValues { it == "infer" }
    return inBatches(known.keys.max()).map { batch -> known.entries.first { it.key >= batch.rows.size }.value to batch }
}

/**
 * What each epoch of a training sees: the samples and a new draw of the replayed ones, in an order decided by the seed.
 *
 * @param size rows of a batch.
 */
internal class Curriculum(samples: List<Sample>, private val plan: Plan, private val size: Int) {
    private val samples = samples.filter { it.weight > 0 }
    private val replayed = plan.replay?.samples.orEmpty().filter { it.weight > 0 }
    private val all = this.samples + replayed
    private val share = plan.replay?.share?.takeIf { replayed.isNotEmpty() } ?: 0.0
    private val drawn = (this.samples.size * share / (1 - share)).roundToInt()

    /** Which rows do not come; null where all do. */
    val skipping: Skipping? = plan.skip?.let { Skipping(it, all.size, last = plan.firstEpoch + plan.epochs - 1) }

    /** How many rows an epoch has. */
    val rows: Int = this.samples.size + drawn

    /** The same for every epoch in which all rows come. */
    val stepsPerEpoch: Int = ceil(rows / size.toDouble()).toInt()

    fun batches(epoch: Int): List<Batch> {
        val random = Random(plan.seed * EPOCHS_APART + epoch)
        val places = samples.indices + draw(random)
        val ordered = if (plan.shuffle) places.shuffledBy(random) else places
        val weight = if (plan.balanceClasses) balanced(places.map(all::get)) else Sample::weight
        return (skipping?.coming(epoch, ordered) ?: ordered).chunked(size) { some ->
            val rows = some.map(all::get)
            Batch(rows, rows.map(weight), some.toList())
        }
    }

    /** The weights with which all classes of an epoch weigh the same. */
    private fun balanced(rows: List<Sample>): (Sample) -> Float {
        val shares = rows.groupBy { it.classOf() }.mapValues { (_, same) -> same.sumOf { it.weight.toDouble() } }
        val mean = shares.values.average()
        return { (it.weight * mean / shares.getValue(it.classOf())).toFloat() }
    }

    /** Places of different replayed samples, as long as there are any. */
    private fun draw(random: Random): List<Int> {
        if (drawn == 0) return emptyList()
        val rounds = ceil(drawn / replayed.size.toDouble()).toInt()
        val places = replayed.indices.map { samples.size + it }
        return List(rounds) { places.shuffledBy(random) }.flatten().take(drawn)
    }
}

/** What is between the seeds of the same epoch of two seeds. */
internal const val EPOCHS_APART = 1_000_003L

/** The label, or the place of the largest number of a one-hot row. */
internal fun Sample.classOf(): Int =
    when (val values = target) {
        is Values.Floats -> values.array.indices.maxByOrNull { values.array[it] } ?: 0
        else -> label ?: throw InputException("balanceClasses needs one label a sample")
    }

/** Fisher and Yates with java.util.Random, whose numbers are the same on every device and for all time. */
internal fun List<Int>.shuffledBy(random: Random): List<Int> {
    val order = toMutableList()
    for (i in order.lastIndex downTo 1) {
        val j = random.nextInt(i + 1)
        order[i] = order[j].also { order[j] = order[i] }
    }
    return order
}
