package org.pocketune.federated

/**
 * What a server may ask at most of this client. The client's owner sets them, and no message changes them.
 *
 * @property epochs of a round.
 * @property steps of a round.
 * @property learningRate of a step.
 * @property proximalMu of FedProx.
 * @property norm the largest L2 norm of all trained arrays together; null goes by what was built.
 */
data class Bounds(
    val epochs: Int = 10,
    val steps: Int = 10_000,
    val learningRate: Double = 1.0,
    val proximalMu: Double = 100.0,
    val norm: Double? = null,
) {
    init {
        require(epochs >= 1 && steps >= 1) { "$this: nothing is within them" }
        require(listOfNotNull(learningRate, proximalMu, norm).all { it.isFinite() && it >= 0 }) { "$this: nothing is within them" }
    }
}

/**
 * What a client does in a round, every value checked.
 *
 * @property epochs passes over the client's rows.
 * @property steps after so many it ends, wherever it is; null: after the epochs.
 * @property learningRate null: that of the program.
 * @property seed of the order of rows.
 * @property proximalMu of the term that holds the weights near those of the server; null: that of the program.
 * @property clippingNorm the largest L2 norm of the change that is sent; null: any.
 * @property round of the run, from 1; epochs are numbered through, so that the order differs by round.
 */
internal data class RoundPlan(
    val epochs: Int,
    val steps: Int?,
    val learningRate: Float?,
    val seed: Long,
    val proximalMu: Float?,
    val clippingNorm: Double?,
    val round: Int,
) {
    companion object {
        private const val ROUNDS = 1 shl 20

        /** The entry of a config that the client reads. */
        private const val PROGRAM = "program"

        /** The plan in a config. Throws [RefusedRoundException] for a value that is none or beyond its bound, and an unknown entry. */
        fun of(config: Map<String, Any>, bounds: Bounds): RoundPlan {
            val read = Entries(config)
            val plan = RoundPlan(
                read.whole("epochs", 1, bounds.epochs)?.toInt() ?: 1,
                read.whole("steps", 1, bounds.steps)?.toInt(),
                read.number("learning-rate", bounds.learningRate)?.toFloat(),
                read.whole("seed", 0, Int.MAX_VALUE) ?: 0,
                read.number("proximal-mu", bounds.proximalMu)?.toFloat(),
                read.number("clipping_norm", Double.MAX_VALUE),
                read.whole("server-round", 1, ROUNDS)?.toInt() ?: 1,
            )
            (config.keys - read.known - PROGRAM).firstOrNull()?.let {
                throw RefusedRoundException("the config has '$it', which is not known: ${read.known.joinToString()}.")
            }
            return plan
        }
    }
}

/** The numbers of a config. */
private class Entries(private val config: Map<String, Any>) {
    /** What was asked for so far. */
    val known = LinkedHashSet<String>()

    fun whole(name: String, least: Int, most: Int): Long? {
        val value = entry(name) ?: return null
        val whole = value as? Long ?: throw RefusedRoundException("$name is $value, and expected is a whole number")
        if (whole !in least..most) refuse(name, value, least, most)
        return whole
    }

    fun number(name: String, most: Double): Double? {
        val value = entry(name) ?: return null
        val number = (value as? Number)?.toDouble()?.takeIf { it.isFinite() }
            ?: throw RefusedRoundException("$name is $value, and expected is a number")
        if (number < 0 || number > most) refuse(name, value, 0.0, most)
        return number
    }

    private fun entry(name: String): Any? {
        known += name
        return config[name]
    }

    private fun refuse(name: String, value: Any, least: Number, most: Number): Nothing =
        throw RefusedRoundException("$name is $value, and the owner of this client allows $least to $most")
}
