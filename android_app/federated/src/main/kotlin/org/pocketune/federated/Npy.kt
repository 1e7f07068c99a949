package org.pocketune.federated

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.abs

/**
 * An array as it travels.
 *
 * @property numbers in row-major order, as many as [shape] says.
 */
class Tensor(val shape: List<Int>, val numbers: FloatArray) {
    init {
        require(shape.fold(1L) { product, d -> product * d } == numbers.size.toLong()) { "$shape and ${numbers.size}" }
    }
}

/** NumPy's `.npy` files: float32 out; float32, or float64 as of a strategy that adds noise, in. */
internal object Npy {
    private val MAGIC = byteArrayOf(0x93.toByte(), 'N'.code.toByte(), 'U'.code.toByte(), 'M'.code.toByte(), 'P'.code.toByte(), 'Y'.code.toByte())
    private val HEADER =
        Regex("""\{\s*'descr':\s*'([^']*)',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([0-9, ]*)\),?\s*\}\s*""")
    private const val ALIGNMENT = 64

    /** The file of an array, version 1.0. */
    fun write(tensor: Tensor): ByteArray {
        val shape = if (tensor.shape.size == 1) "(${tensor.shape[0]},)" else tensor.shape.joinToString(", ", "(", ")")
        val text = "{'descr': '<f4', 'fortran_order': False, 'shape': $shape, }"
        val start = MAGIC.size + 4
        val end = (start + text.length + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
        val file = ByteBuffer.allocate(end + 4 * tensor.numbers.size).order(ByteOrder.LITTLE_ENDIAN)
        file.put(MAGIC).put(1).put(0).putShort((end - start).toShort())
        file.put(text.padEnd(end - start - 1).toByteArray(Charsets.US_ASCII)).put('\n'.code.toByte())
        file.asFloatBuffer().put(tensor.numbers)
        return file.array()
    }

    /**
     * The array of a file; a number that no float32 holds becomes NaN.
     *
     * @throws RefusedRoundException it is none of float32 or float64, little-endian, in row-major order. Nothing is unpickled.
     */
    fun read(name: String, bytes: ByteArray): Tensor {
        val file = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
        fun refuse(why: String): Nothing = throw RefusedRoundException("$name came as no array: $why")
        if (bytes.size < 12 || MAGIC.indices.any { bytes[it] != MAGIC[it] }) refuse("it is no .npy file")
        val start = if (bytes[6].toInt() == 1) 10 else 12
        val length = if (start == 10) file.getShort(8).toInt() and 0xffff else file.getInt(8)
        if (bytes[6] !in 1..3 || length < 0 || length > bytes.size - start) refuse("its head is cut short")
        val header = HEADER.matchEntire(String(bytes, start, length, Charsets.ISO_8859_1)) ?: refuse("its head cannot be read")
        val (type, turned, axes) = header.destructured
        if (turned == "True") refuse("it is in Fortran's order")
        val shape = axes.split(",").map { it.trim() }.filter { it.isNotEmpty() }.map { it.toIntOrNull() ?: refuse("shape ($axes)") }
        val count = shape.fold(1L) { product, d -> if (product > Int.MAX_VALUE) product else product * d }
        val width = when (type) {
            "<f4" -> 4
            "<f8" -> 8
            else -> throw RefusedRoundException("$name came as $type, and is float32")
        }
        if (count * width != (bytes.size - start - length).toLong()) refuse("$shape of $type in ${bytes.size - start - length} bytes")
        val data = file.apply { position(start + length) }.slice().order(ByteOrder.LITTLE_ENDIAN)
        return Tensor(shape, FloatArray(count.toInt()) { if (width == 4) data.getFloat(4 * it) else rounded(data.getDouble(8 * it)) })
    }

    private fun rounded(number: Double): Float = if (abs(number) <= Float.MAX_VALUE.toDouble()) number.toFloat() else Float.NaN
}
