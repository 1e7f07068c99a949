package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.FloatBuffer
import kotlin.math.abs

/** The largest number of half precision; an engine gives 131008 for whatever is above. */
private const val HALF_PRECISION_ENDS = 65504f

/**
 * The gradients of a step that is made of several calls, between them. In a stateless program an accumulator goes in and
 * out of each call, which adds to it. In a split one each call gives gradients of its own, which are added up here.
 *
 * @param isHalf whether what computes them rounds to half precision.
 */
internal class Gradients(private val manifest: Manifest, private val isHalf: Boolean) {
    /** What `apply` takes, by name. */
    private val sums = manifest.updating.taking(Role.GRADIENT).associate { it.name to directBuffer(it.size * it.dtype.bytes) }

    /** What a call gives: the sums themselves, where there is nothing to be added. */
    private val given =
        if (manifest.state == StateKind.SPLIT && manifest.accumulates) sums.mapValues { directBuffer(it.value.capacity()) }
        else sums

    fun taken(signature: Signature): Map<String, ByteBuffer> = of(signature.taking(Role.GRADIENT), sums)

    fun given(signature: Signature): Map<String, ByteBuffer> = of(signature.giving(Role.GRADIENT), given)

    /** After a call: see [Memory.keep]. */
    fun keep(signature: Signature, share: Float) {
        if (manifest.state != StateKind.SPLIT) return
        for (spec in signature.giving(Role.GRADIENT)) {
            val part = given.getValue(spec.name).numbers()
            part.check(spec.name.removePrefix(GRADIENT))
            val sum = sums.getValue(spec.name)
            if (sum !== given.getValue(spec.name)) sum.numbers().add(part, share)
        }
    }

    fun clear() = sums.values.forEach { it.zero() }

    private fun of(specs: List<TensorSpec>, buffers: Map<String, ByteBuffer>) =
        specs.associate { it.name to buffers.getValue(it.name) }

    private fun FloatBuffer.check(tensor: String) {
        val end = if (isHalf) HALF_PRECISION_ENDS else Float.POSITIVE_INFINITY
        val bad = (0 until limit()).firstOrNull { !(abs(get(it)) < end) } ?: return
        val advice =
            if (isHalf) {
                "half precision ends at $end: build with a loss scale below ${manifest.lossScale}, or scale the inputs down"
            } else {
                manifest.operations() ?: "the loss is finite and its slope is not: lower the learning rate"
            }
        throw DivergedException("the gradient of $tensor overflows, it reaches ${get(bad)}; $advice")
    }

    private fun FloatBuffer.add(part: FloatBuffer, share: Float) {
        for (i in 0 until limit()) put(i, get(i) + share * part.get(i))
    }

    private fun ByteBuffer.numbers(): FloatBuffer =
        duplicate().apply { clear() }.order(order()).asFloatBuffer()
}
