package org.pocketune.trainer

import java.util.PriorityQueue
import java.util.Random
import kotlin.math.exp
import kotlin.math.min

/**
 * How the next token is chosen by its logits.
 *
 * @property temperature 0 takes the likeliest token; more draws among all, by their logits divided by it.
 * @property topK draws among so many of the likeliest tokens.
 * @property topP and of these among the fewest whose probabilities add up to it.
 * @property seed of the draws; null: another one each time.
 */
data class Sampling(
    val temperature: Double = 0.0,
    val topK: Int = 40,
    val topP: Double = 0.95,
    val seed: Long? = null,
)

/** Chooses tokens one after the other. Throws [InputException] for a sampling that there is not. */
internal class TokenChoice(private val sampling: Sampling) {
    private val random = sampling.seed?.let { Random(it) } ?: Random()

    init {
        with(sampling) {
            if (!(temperature >= 0) || topK < 1 || !(topP > 0 && topP <= 1)) {
                throw InputException(
                    "temperature is 0 or more, topK 1 or more and topP above 0 and at most 1, not $temperature, $topK and $topP"
                )
            }
        }
    }

    /** The token of some logits. Throws [DivergedException]: they are not finite. */
    fun next(logits: FloatArray): Int {
        if (!logits.all { it.isFinite() }) {
            throw DivergedException("the logits of the next token are not finite: restore a saved state or reset")
        }
        if (sampling.temperature == 0.0) return logits.indices.maxBy { logits[it] }
        val among = likeliest(logits)
        val weights = among.map { exp((logits[it].toDouble() - logits[among[0]]) / sampling.temperature) }
        val sums = weights.runningReduce(Double::plus)
        val few = sums.indexOfFirst { it >= sampling.topP * sums.last() }
        val drawn = random.nextDouble() * sums[few]
        return among[(0 until few).firstOrNull { drawn < sums[it] } ?: few]
    }

    /** As many of the likeliest as are drawn among, the likeliest first. */
    private fun likeliest(logits: FloatArray): List<Int> {
        val leastLikelyFirst = compareBy<Int> { logits[it] }.thenByDescending { it }
        val kept = PriorityQueue(leastLikelyFirst)
        for (token in logits.indices) {
            kept += token
            if (kept.size > sampling.topK) kept.poll()
        }
        return kept.sortedWith(leastLikelyFirst.reversed())
    }
}

/**
 * A text that a program reads: the keys and values of its tokens. It belongs to the trainer's thread, but for making it
 * and [check].
 */
internal class KeptText(private val manifest: Manifest, private val engine: Engine) {
    private val sizes = listOf(DECODE, PREFILL).associateWith { input(it, "ids").rowSize }
    private val kept = input(DECODE, "kept_keys")
    private val keys = FloatArray(kept.size)
    private val values = FloatArray(kept.size)
    private var position = 0

    /** Tokens that it may have. */
    private val length = kept.shape[TOKENS]

    /** How many tokens can be written behind so many: the last one is given, and not read. */
    fun room(tokens: Int): Int = length - tokens + 1

    /** Throws [InputException] where these ids cannot be continued. */
    fun check(ids: IntArray) {
        if (ids.isEmpty()) refuse("ids: there are none; pass one or more to continue")
        if (ids.size > length) {
            refuse(
                "ids: ${ids.size} tokens are too many to continue: a row of this program holds $length; build it with a larger " +
                    "length, or leave tokens out"
            )
        }
        val words = manifest.targetLabels.values.first().count ?: return
        ids.firstOrNull { it !in 0 until words }?.let {
            refuse("ids: $it is no number from 0 to ${words - 1}: the tokenizer is that of another model")
        }
    }

    /** Reads tokens behind the others, [between] the calls; returns the logits of the one that follows them. */
    suspend fun read(ids: IntArray, between: suspend () -> Unit): FloatArray {
        var logits = FloatArray(0)
        var start = 0
        while (start < ids.size) {
            between()
            val name = if (ids.size - start == 1) DECODE else PREFILL
            val end = min(start + sizes.getValue(name), ids.size)
            logits = call(name, ids.copyOfRange(start, end))
            start = end
        }
        return logits
    }

    private fun call(name: String, ids: IntArray): FloatArray {
        val found = engine.call(
            name,
            mapOf(
                "ids" to Values.Ints(ids.copyOf(sizes.getValue(name))),
                "position" to Values.Ints(intArrayOf(position)),
                "count" to Values.Ints(intArrayOf(ids.size)),
                "kept_keys" to Values.Floats(keys),
                "kept_values" to Values.Floats(values),
            ),
        )
        keep(found.getValue("keys"), keys, ids.size, sizes.getValue(name))
        keep(found.getValue("values"), values, ids.size, sizes.getValue(name))
        position += ids.size
        return floats(found.getValue("logits"))
    }

    /** Puts the first [count] of [size] tokens, of each layer and head, behind those that are there. */
    private fun keep(from: Values, to: FloatArray, count: Int, size: Int) {
        val width = kept.shape.last()
        repeat(to.size / (length * width)) { head ->
            val first = head * size * width
            floats(from).copyInto(to, (head * length + position) * width, first, first + count * width)
        }
    }

    private fun input(signature: String, name: String): TensorSpec =
        manifest.signatures[signature]?.inputs?.firstOrNull { it.name == name }
            ?: refuse("this program cannot generate: build it with --signatures train,infer,generate")

    private fun floats(values: Values): FloatArray = (values as Values.Floats).array

    private fun refuse(problem: String): Nothing = throw InputException(problem)

    private companion object {
        const val PREFILL = "prefill"
        const val DECODE = "decode"

        /** The axis of tokens in what is kept. */
        const val TOKENS = 3
    }
}
