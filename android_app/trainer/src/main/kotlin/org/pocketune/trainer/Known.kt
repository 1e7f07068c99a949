package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.serialization.Serializable

/**
 * A float32 tensor that is known when a plain model is exported: one that is stored, as a [Part] is, or one that earlier
 * ones decide, whose places are [operands]. A sum or product is of a first one of as many elements and a second one whose
 * axes, counted from the last, are as long or 1.
 */
@Serializable
internal class Known(
    val source: Source,
    val shape: List<Int>,
    val number: Long = 0,
    val name: String = "",
    val operands: List<Int> = emptyList(),
) {
    val nbytes
        get(): Long {
            if (shape.size > MOST_AXES) damagedAssembly("a tensor of ${shape.size} axes")
            return shape.fold(Float.SIZE_BYTES.toLong()) { sum, axis ->
                if (axis < 0 || sum > Int.MAX_VALUE) damagedAssembly("$shape is no shape") else sum * axis
            }
        }

    private val takes
        get() = when (source) {
            Source.ADD, Source.MULTIPLY -> 2
            Source.RESHAPE -> 1
            Source.BUFFER, Source.STATE, Source.MERGED -> 0
            Source.OWN, Source.KNOWN, Source.HALF, Source.WEIGHT -> -1
        }

    /** The bytes, from those of the earlier ones: the bits that the host gets. */
    fun bytes(earlier: List<Pair<Known, ByteBuffer>>, stored: (Source, Long, String) -> ByteBuffer): ByteBuffer {
        val known = operands.mapNotNull { earlier.getOrNull(it) }
        if (known.size != operands.size || known.size != takes) damagedAssembly("$source of $operands")
        val first = if (known.isEmpty()) stored(source, number, name) else known[0].second
        if (first.limit().toLong() != nbytes) damagedAssembly("a tensor $shape has ${first.limit()} bytes")
        return when (source) {
            Source.ADD -> combined(first, known[1]) { a, b -> a + b }
            Source.MULTIPLY -> combined(first, known[1]) { a, b -> a * b }
            else -> first
        }
    }

    private inline fun combined(
        first: ByteBuffer,
        second: Pair<Known, ByteBuffer>,
        combine: (Float, Float) -> Float,
    ): ByteBuffer {
        val result = directBuffer(first.limit()).order(ByteOrder.LITTLE_ENDIAN)
        val (a, b) = listOf(first, second.second).map { it.between(0, it.limit()).asFloatBuffer() }
        val steps = second.first.stepsIn(shape)
        for (at in 0 until a.limit()) {
            var rest = at
            var place = 0
            for (axis in shape.indices.reversed()) {
                place += rest % shape[axis] * steps[axis]
                rest /= shape[axis]
            }
            result.putFloat(at * Float.SIZE_BYTES, combine(a.get(at), b.get(place)))
        }
        return result
    }

    /** How far apart the elements of this tensor are along each axis of a larger one; 0 where it has one for all. */
    private fun stepsIn(larger: List<Int>): IntArray {
        val steps = IntArray(larger.size)
        var step = 1
        if (shape.size > larger.size) damagedAssembly("$shape does not fit $larger")
        for (last in 1..shape.size) {
            val length = shape[shape.size - last]
            if (length != 1 && length != larger[larger.size - last]) damagedAssembly("$shape does not fit $larger")
            if (length != 1) steps[larger.size - last] = step
            step *= length
        }
        return steps
    }

    private companion object {
        const val MOST_AXES = 8
    }
}
