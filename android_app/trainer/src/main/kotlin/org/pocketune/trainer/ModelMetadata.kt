package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException

// Places of fields in the tables of TFLite's schema; fixed for all time by the format.
private const val MODEL_BUFFERS = 4
private const val MODEL_METADATA = 6
private const val BUFFER_DATA = 0
private const val BUFFER_OFFSET = 1
private const val BUFFER_SIZE = 2
private const val METADATA_NAME = 0
private const val METADATA_BUFFER = 1

// More than any program needs; they bound the work that a hostile file can ask for.
private const val MAX_ENTRIES = 100_000
private const val MAX_NAME = 4096

/**
 * What travels in a `.tflite` besides the graphs. Every offset is checked before it is followed.
 *
 * @param file the flatbuffer, from 0 to its limit.
 */
internal class ModelMetadata(file: ByteBuffer) {
    private val data = file.between(0, file.limit())

    /**
     * The entries by name, as views of the file.
     *
     * @param references entries whose names begin so hold the number of the buffer that is meant.
     * @throws DamagedProgramException an offset leads out of the file, or it is no TFLite model.
     */
    fun entries(vararg references: String): Map<String, ByteBuffer> {
        if (data.limit() < 8 || data.between(4, 8).text(Charsets.ISO_8859_1) != "TFL3") {
            throw DamagedProgramException("it is no TFLite model")
        }
        val root = int(0L)
        val buffers = vector(root, MODEL_BUFFERS)
        val entries = vector(root, MODEL_METADATA)
        if (entries.count > MAX_ENTRIES) damaged()
        return (0 until entries.count).associate { i ->
            val entry = indirect(entries.start + 4L * i)
            val name = bytes(entry, METADATA_NAME)
            if (name.limit() > MAX_NAME) damaged()
            val own = buffer(buffers, field(entry, METADATA_BUFFER)?.let(::int) ?: 0L)
            val key = text(name)
            key to if (references.any(key::startsWith)) buffer(buffers, number(own)) else own
        }
    }

    /** A buffer of the file, as a view. Throws [DamagedProgramException] when there is none of this number. */
    fun buffer(number: Long): ByteBuffer = buffer(vector(int(0L), MODEL_BUFFERS), number)

    private fun buffer(buffers: Vector, number: Long): ByteBuffer {
        if (number !in 0 until buffers.count) damaged()
        val table = indirect(buffers.start + 4 * number)
        val offset = field(table, BUFFER_OFFSET)
        val size = field(table, BUFFER_SIZE)
        // Large data, and what is a part of other data, lie behind the flatbuffer.
        return if (offset == null || size == null) bytes(table, BUFFER_DATA) else between(long(offset), long(size))
    }

    private fun number(entry: ByteBuffer): Long {
        if (entry.limit() != 4) damaged()
        return entry.getInt(0).toLong() and 0xffffffffL
    }

    private class Vector(val start: Long, val count: Int)

    /** Where a field of a table lies; null when it is left out. */
    private fun field(table: Long, place: Int): Long? {
        val offsets = table - int(table).toInt()
        val at = 4L + 2 * place
        if (at + 2 > short(offsets)) return null
        return short(offsets + at).takeIf { it != 0 }?.let { table + it }
    }

    /** A vector of offsets; empty when the field is left out. */
    private fun vector(table: Long, place: Int): Vector {
        val start = indirect(field(table, place) ?: return Vector(0, 0))
        val count = int(start)
        check(start + 4, 4 * count)
        return Vector(start + 4, count.toInt())
    }

    /** A string or a vector of bytes; empty when the field is left out. */
    private fun bytes(table: Long, place: Int): ByteBuffer {
        val start = indirect(field(table, place) ?: return data.between(0, 0))
        val count = int(start)
        check(start + 4, count)
        return data.between(start.toInt() + 4, (start + 4 + count).toInt())
    }

    private fun between(start: Long, count: Long): ByteBuffer {
        if (start > data.limit() || count < 0) damaged()
        check(start, count)
        return data.between(start.toInt(), (start + count).toInt())
    }

    private fun indirect(at: Long): Long = at + int(at)

    private fun long(at: Long): Long = check(at, 8).let { data.getLong(at.toInt()) }

    /** An unsigned number of 32 bits. */
    private fun int(at: Long): Long = check(at, 4).let { data.getInt(at.toInt()).toLong() and 0xffffffffL }

    private fun short(at: Long): Int = check(at, 2).let { data.getShort(at.toInt()).toInt() and 0xffff }

    private fun text(name: ByteBuffer): String =
        try {
            name.text()
        } catch (_: CharacterCodingException) {
            damaged()
        }

    private fun check(at: Long, size: Long) {
        if (at < 0 || size > data.limit() - at) damaged()
    }

    private fun damaged(): Nothing = throw DamagedProgramException("it is damaged or cut short: copy or install it again")
}
