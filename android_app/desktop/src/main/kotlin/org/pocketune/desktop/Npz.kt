package org.pocketune.desktop

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.ZipFile
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.Values

/** An array of NumPy: its bytes in row-major order, little-endian. */
internal class NumpyArray(val type: String, val shape: List<Int>, private val data: ByteBuffer) {
    /** One step along the first axis, as numbers of the type that a program takes. Throws [UsageException]. */
    fun row(index: Int, dtype: Dtype): Values {
        val size = shape.drop(1).fold(1) { product, axis -> product * axis }
        val from = index * size
        return when (dtype) {
            Dtype.FLOAT32 -> Values.Floats(FloatArray(size) { number(from + it).toFloat() })
            Dtype.INT32, Dtype.INT8, Dtype.UINT8, Dtype.INT16 -> Values.Ints(IntArray(size) { whole(from + it) })
            Dtype.BOOL -> Values.Bools(BooleanArray(size) { whole(from + it) != 0 })
        }
    }

    private fun number(at: Int): Number = when (type) {
        "f4" -> data.getFloat(4 * at)
        "f8" -> data.getDouble(8 * at)
        "i4" -> data.getInt(4 * at)
        "i8" -> data.getLong(8 * at)
        "u1", "b1" -> data.get(at).toInt() and 0xff
        "i1" -> data.get(at)
        "i2" -> data.getShort(2 * at)
        else -> throw UsageException("an array of $type: save float32, float64, int8, int16, int32, int64, uint8 or bool")
    }

    private fun whole(at: Int): Int {
        val number = number(at)
        if (number is Float || number is Double) throw UsageException("float numbers where the program takes whole ones")
        return Math.toIntExact(number.toLong())
    }
}

/** The arrays that `np.savez` wrote, by name. Throws [UsageException]. */
internal fun readNpz(file: File): Map<String, NumpyArray> =
    try {
        ZipFile(file).use { zip ->
            zip.entries().asSequence().associate { entry ->
                entry.name.removeSuffix(".npy") to array(zip.getInputStream(entry).readBytes())
            }
        }
    } catch (error: IOException) {
        throw UsageException("$file is no file of np.savez: ${error.message}")
    }

private val DESCRIPTION = Regex("'descr': '[<|=]?(\\w+)', 'fortran_order': (True|False), 'shape': \\(([\\d, ]*)\\)")

private fun array(bytes: ByteArray): NumpyArray {
    val data = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
    // "\x93NUMPY", the version, and the length of the header: two bytes in version 1, then four.
    val start = if (bytes[6].toInt() == 1) 10 else 12
    val length = if (start == 10) data.getShort(8).toInt() and 0xffff else data.getInt(8)
    val header = String(bytes, start, length, Charsets.US_ASCII)
    val (type, isColumnMajor, shape) =
        DESCRIPTION.find(header)?.destructured ?: throw UsageException("an array of another kind: ${header.trim()}")
    if (isColumnMajor == "True") throw UsageException("an array in Fortran's order: save np.ascontiguousarray of it")
    val axes = shape.split(",").map { it.trim() }.filter { it.isNotEmpty() }.map { it.toInt() }
    data.position(start + length)
    return NumpyArray(type, axes, data.slice().order(ByteOrder.LITTLE_ENDIAN))
}
