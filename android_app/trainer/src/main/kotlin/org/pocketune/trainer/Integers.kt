package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** By the state tensor of a weight in int8 that of its scales. */
internal val Manifest.scales: Map<String, String>
    get() = parameters.flatMap { it.pieces }.mapNotNull { piece -> piece.scales?.let { piece.tensor to it.tensor } }.toMap()

/** The tensors of a state by name, those in int8 as the float32 numbers that they stand for, little-endian. */
internal fun Manifest.realTensors(state: Map<String, ByteBuffer>): Map<String, ByteBuffer> {
    val shapes = stateTensors.associate { it.tensor to it.shape }
    val made = parameters.flatMap { it.pieces }.mapNotNull { piece ->
        piece.scales?.let { by ->
            val (integers, scales) = state.getValue(piece.tensor) to state.getValue(by.tensor)
            piece.tensor to numbers(integers, scales, inner = shapes.getValue(piece.tensor).drop(by.axis + 1).product().toInt())
        }
    }
    return state + made
}

/** Integers times their scales, of which each is that of [inner] integers, and they begin again after the last. */
private fun numbers(integers: ByteBuffer, scales: ByteBuffer, inner: Int): ByteBuffer {
    val by = scales.between(0, scales.limit()).asFloatBuffer()
    val made = directBuffer(integers.limit() * Float.SIZE_BYTES).order(ByteOrder.LITTLE_ENDIAN)
    for (i in 0 until integers.limit()) made.putFloat(i * Float.SIZE_BYTES, integers.get(i) * by.get(i / inner % by.limit()))
    return made
}
