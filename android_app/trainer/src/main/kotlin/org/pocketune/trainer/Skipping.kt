package org.pocketune.trainer

/**
 * The loss of each row of a training when it came last, and which rows do not come by it ([SkipLearned]).
 *
 * @param rows how many there are.
 * @param last the number of the last epoch.
 */
internal class Skipping(private val skip: SkipLearned, rows: Int, private val last: Int) {
    private val losses = FloatArray(rows) { Float.NaN }

    /** How many rows of the present epoch do not come. */
    var leftOut = 0
        private set

    /** Of the places of an epoch's rows those that come; rows that never came do. */
    fun coming(epoch: Int, places: List<Int>): List<Int> {
        val all = comeAllIn(epoch)
        return places.filter { all || !(losses[it] < skip.below) }.also { leftOut = places.size - it.size }
    }

    /** Whether all rows come in an epoch. */
    fun comeAllIn(epoch: Int) = epoch % skip.revisit == 0 || epoch == last

    /** Takes note of the losses that rows had in a step. */
    fun see(places: List<Int>, found: FloatArray) {
        for ((place, loss) in places.zip(found.asIterable())) losses[place] = loss
    }
}
