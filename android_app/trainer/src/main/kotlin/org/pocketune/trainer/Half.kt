package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** Float32 numbers as float16, little-endian. Throws [DamagedProgramException] for one that float16 does not hold. */
internal fun asHalf(data: ByteBuffer): ByteBuffer {
    if (data.limit() % Float.SIZE_BYTES != 0) damagedAssembly("${data.limit()} bytes are no float32 numbers")
    val numbers = data.between(0, data.limit()).asIntBuffer()
    val halves = directBuffer(numbers.limit() * Short.SIZE_BYTES).order(ByteOrder.LITTLE_ENDIAN)
    for (at in 0 until numbers.limit()) halves.putShort(at * Short.SIZE_BYTES, half(numbers.get(at)).toShort())
    return halves
}

/** The bits of a float16 that is the float32 of these [bits]. */
private fun half(bits: Int): Int {
    val sign = bits ushr 16 and 0x8000
    val exponent = bits ushr 23 and 0xff
    val fraction = bits and 0x7fffff
    // Of float16 the exponent is 112 less; below 1 it is that of the smallest, and the leading 1 is written out.
    val less = exponent - 112
    val (whole, lost) = when {
        exponent == 0 -> 0 to fraction
        exponent == 0xff -> (0x1f shl 10 or (fraction ushr 13)) to (fraction and 0x1fff)
        less >= 0x1f || less < -10 -> 0 to 1
        less > 0 -> (less shl 10 or (fraction ushr 13)) to (fraction and 0x1fff)
        else -> (fraction or 0x800000).let { it ushr 14 - less to (it and (1 shl 14 - less) - 1) }
    }
    if (lost != 0) damagedAssembly("${Float.fromBits(bits)} is no float16")
    return sign or whole
}
