package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.FloatBuffer
import kotlin.math.abs

/** Where half precision ends; what is larger is infinite there, or held at the end of the engine's range. */
private const val HALF_PRECISION_ENDS = 65504f

/**
 * The gradients of a step that is made of several calls, between them. In a stateless program an accumulator goes in and
 * out of each call, which adds to it. In a split one each call gives gradients of its own, which are added up here.
 */
internal class Gradients(private val manifest: Manifest) {
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
        for (i in 0 until limit()) {
            val value = get(i)
            if (abs(value) < HALF_PRECISION_ENDS) continue // never for NaN
            throw DivergedException(
                "the gradient of $tensor reaches $value, and the half precision of accelerators ends at " +
                    "$HALF_PRECISION_ENDS: lower the learning rate, or build with a loss scale below ${manifest.lossScale}"
            )
        }
    }

    private fun FloatBuffer.add(part: FloatBuffer, share: Float) {
        for (i in 0 until limit()) put(i, get(i) + share * part.get(i))
    }

    private fun ByteBuffer.numbers(): FloatBuffer =
        duplicate().apply { clear() }.order(order()).asFloatBuffer()
}
