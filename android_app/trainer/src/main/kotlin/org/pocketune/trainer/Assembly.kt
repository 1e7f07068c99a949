package org.pocketune.trainer

import java.nio.ByteBuffer
import java.util.zip.DataFormatException
import java.util.zip.Inflater
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException

/** Where a piece of a plain model comes from. */
@Serializable
internal enum class Source {
    @SerialName("own") OWN,
    @SerialName("buffer") BUFFER,
    @SerialName("state") STATE,
    @SerialName("merged") MERGED,
}

/**
 * A piece of the file of a plain model: the next [nbytes] of the entry's own, the program's buffer [number], or the
 * tensor [name] of the state.
 */
@Serializable
internal class Part(val source: Source, val nbytes: Long, val number: Long = 0, val name: String = "")

@Serializable
private class Contents(val parts: List<Part>)

/** How a program and a state make a plain inference model; the host reads the same (converter/inference/assembly.py). */
internal class Assembly private constructor(private val parts: List<Part>, private val own: ByteBuffer) {
    /**
     * The pieces of the file in order, as views.
     *
     * @param buffer of the program, by its number.
     * @param state its tensors by name.
     * @throws InputException the program has adapters.
     * @throws DamagedProgramException the entry makes no sense.
     */
    fun pieces(buffer: (Long) -> ByteBuffer, state: Map<String, ByteBuffer>): List<ByteBuffer> {
        var at = 0L
        val pieces = parts.map { part ->
            val piece = when (part.source) {
                Source.OWN -> {
                    if (part.nbytes !in 0..own.limit() - at) damaged("it is too short")
                    own.between(at.toInt(), (at + part.nbytes).toInt()).also { at += part.nbytes }
                }
                Source.BUFFER -> buffer(part.number)
                Source.STATE -> state[part.name] ?: damaged("the state has no ${part.name}")
                Source.MERGED -> throw InputException(
                    "${part.name} has an adapter, and only the host merges it: export the state, and there call " +
                        "program.export_inference or python -m converter export"
                )
            }
            if (piece.limit().toLong() != part.nbytes) damaged("a piece has ${piece.limit()} bytes, not ${part.nbytes}")
            piece
        }
        if (at != own.limit().toLong()) damaged("${own.limit() - at} bytes are left over")
        return pieces
    }

    companion object {
        /** Of the tables of a model with a hundred thousand operators. */
        private const val MOST = 1 shl 26
        private const val LINE = '\n'.code.toByte()

        /** Throws [DamagedProgramException]. */
        fun read(entry: ByteBuffer): Assembly {
            val data = inflated(entry)
            val end = (0 until data.limit()).firstOrNull { data.get(it) == LINE } ?: damaged("it has no list of parts")
            try {
                val contents = StrictJson.decode(Contents.serializer(), data.between(0, end))
                return Assembly(contents.parts, data.between(end + 1, data.limit()))
            } catch (error: SerializationException) {
                damaged(error.lastLine())
            }
        }

        private fun inflated(entry: ByteBuffer): ByteBuffer {
            val inflater = Inflater()
            try {
                inflater.setInput(entry.copy())
                var data = ByteArray(1 shl 16)
                var size = 0
                while (!inflater.finished()) {
                    if (size == data.size) data = if (size < MOST) data.copyOf(2 * size) else damaged("it is too large")
                    val more = inflater.inflate(data, size, data.size - size)
                    if (more == 0 && !inflater.finished()) damaged("it is cut short")
                    size += more
                }
                return ByteBuffer.wrap(data).between(0, size)
            } catch (error: DataFormatException) {
                damaged(error.lastLine())
            } finally {
                inflater.end()
            }
        }

        private fun damaged(problem: String): Nothing =
            throw DamagedProgramException("how its plain model is put together is damaged ($problem): copy or install it again")
    }
}
