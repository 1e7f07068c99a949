package org.pocketune.trainer

import kotlin.math.PI
import kotlin.math.cos

/** The learning rate of every step. */
fun interface LearningRate {
    /** Of step [step] of [steps], from 0. */
    fun at(step: Int, steps: Int): Float

    /** The same for every step. */
    data class Constant(val rate: Float) : LearningRate {
        override fun at(step: Int, steps: Int) = rate
    }

    /** From [peak] down to [floor] along half a cosine. */
    data class Cosine(val peak: Float, val floor: Float = 0f) : LearningRate {
        override fun at(step: Int, steps: Int): Float =
            (floor + (peak - floor) * (1 + cos(PI * step / steps)) / 2).toFloat()
    }

    /** A straight rise over [warmUp] steps, then [rest]. */
    data class WarmUp(val warmUp: Int, val rest: LearningRate) : LearningRate {
        override fun at(step: Int, steps: Int): Float =
            if (step < warmUp) rest.at(0, restOf(steps)) * (step + 1) / (warmUp + 1)
            else rest.at(step - warmUp, restOf(steps))

        private fun restOf(steps: Int) = maxOf(1, steps - warmUp)
    }
}

/**
 * Samples that came with the app, mixed in so that the model does not forget what it knew.
 *
 * @property share of all samples of an epoch, 0 to below 1. Each epoch draws its own.
 */
class Replay(val samples: List<Sample>, val share: Double = 0.5)

/** Ends a training when the held-out loss has not fallen for [patience] epochs; the best epoch's state is kept. */
data class EarlyStop(val patience: Int = 2)

/**
 * Leaves rows out of most epochs that lost little when they came last.
 *
 * All rows come in each epoch, from 0, whose number [revisit] divides, and in the last; in others those do not that lost less than [below]
 * when they came last, before that step's update and without the row's weight. The order of the others stays, and batches
 * are filled with them. Nothing corrects for those left out. Steps keep the numbers, and rates, that they have if all come.
 * The program has to give the loss of each row: `row_losses="on"` of its build.
 */
data class SkipLearned(val below: Float, val revisit: Int = 2)

/**
 * How to train.
 *
 * @property epochs how often each sample is seen.
 * @property learningRate null is the one that the optimizer was built with. None is taken beside a rate that runs in the
 *   program (`Manifest.runningRate`).
 * @property shuffle a new order each epoch; off keeps the order of the list.
 * @property seed of the orders: the same seed, samples and plan give the same training.
 * @property balanceClasses weigh each class alike, however many samples it has.
 * @property checkpointEvery steps between checkpoints of the unfinished training on the disk; 0 writes none. Where rows are
 *   skipped they are written at least so far apart, behind epochs after which all rows come.
 * @property stalledMillis [TrainEvent.Stalled] is told of a step that runs for longer.
 * @property rateScale multiplies the learning rate, be it given, the optimizer's, or one that runs in the program.
 * @property firstEpoch the number of the first epoch, so that trainings one after another have the orders of a single one.
 * @property steps after so many it ends, wherever it is; null: after the epochs.
 * @property skip which rows do not come in most epochs; null: all come.
 * @property redraw whether each epoch but the first, by [firstEpoch], begins with other channels drawn by the seed and the
 *   number of the epoch, in programs of `Channels(..., redrawn=True)`.
 */
class Plan(
    val epochs: Int = 3,
    val learningRate: LearningRate? = null,
    val shuffle: Boolean = true,
    val seed: Long = 0,
    val replay: Replay? = null,
    val balanceClasses: Boolean = false,
    val earlyStop: EarlyStop? = null,
    val checkpointEvery: Int = 100,
    val stalledMillis: Long = 30_000,
    val rateScale: Float = 1f,
    val firstEpoch: Int = 0,
    val steps: Int? = null,
    val skip: SkipLearned? = null,
    val redraw: Boolean = false,
) {
    /** The same, with other samples mixed in. */
    internal fun with(replay: Replay) = Plan(
        epochs, learningRate, shuffle, seed, replay, balanceClasses, earlyStop, checkpointEvery, stalledMillis, rateScale,
        firstEpoch, steps, skip, redraw,
    )
}

/** What a training may take of the device. [diskBytes] is for all generations of the state together. */
data class Limits(val samples: Int = 100_000, val diskBytes: Long = 256L shl 20)
