package org.pocketune.trainer

import java.nio.ByteBuffer
import java.util.zip.DataFormatException
import java.util.zip.Inflater
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException

/** Where a piece of a plain model, or a tensor that is known when it is exported, comes from. */
@Serializable
internal enum class Source {
    @SerialName("own") OWN,
    @SerialName("buffer") BUFFER,
    @SerialName("half") HALF,
    @SerialName("state") STATE,
    @SerialName("merged") MERGED,
    @SerialName("weight") WEIGHT,
    @SerialName("known") KNOWN,
    @SerialName("add") ADD,
    @SerialName("multiply") MULTIPLY,
    @SerialName("reshape") RESHAPE,
}

/**
 * A piece of the file of a plain model: the next [nbytes] of the entry's own, the program's buffer [number], its numbers
 * as float16, the tensor [name] of the state, the weight [name] that trained as the model has it, or the tensor [number]
 * of those that are known.
 */
@Serializable
internal class Part(val source: Source, val nbytes: Long, val number: Long = 0, val name: String = "")

@Serializable
private class Contents(val parts: List<Part>, val known: List<Known> = emptyList())

/** How a program and a state make a plain inference model; the host reads the same (converter/program/assembly.py). */
internal class Assembly private constructor(
    private val parts: List<Part>,
    private val known: List<Known>,
    private val own: ByteBuffer,
) {
    /**
     * The pieces of the file in order; what is stored is a view. What is known, and the file, are each at most [TIMES] as
     * large as the program and the state.
     *
     * @param size of the program's file.
     * @param buffer of the program, by its number.
     * @param state its tensors by name.
     * @param weight what trained, by name, as the model has it; null for what has an adapter.
     * @throws InputException the program has adapters.
     * @throws DamagedProgramException the entry makes no sense.
     */
    fun pieces(
        size: Int,
        buffer: (Long) -> ByteBuffer,
        state: Map<String, ByteBuffer>,
        weight: (String) -> ByteBuffer?,
    ): List<ByteBuffer> {
        val most = TIMES * (size + state.values.sumOf { it.limit().toLong() })
        fun stored(source: Source, number: Long, name: String): ByteBuffer = when (source) {
            Source.BUFFER -> buffer(number)
            Source.HALF -> asHalf(buffer(number))
            Source.STATE -> state[name] ?: damagedAssembly("the state has no $name")
            Source.WEIGHT -> weight(name) ?: adapted(name)
            Source.MERGED -> adapted(name)
            else -> damagedAssembly("$source is no place for bytes")
        }
        val computed = ArrayList<Pair<Known, ByteBuffer>>()
        var made = 0L
        for (tensor in known) {
            made += tensor.nbytes
            if (made > most) damagedAssembly("it makes $made bytes or more, of at most $most")
            computed += tensor to tensor.bytes(computed, ::stored)
        }
        val read = known.flatMapTo(HashSet()) { tensor -> tensor.operands.map { it.toLong() } }
        parts.filter { it.source == Source.KNOWN }.mapTo(read) { it.number }
        known.indices.firstOrNull { it.toLong() !in read }?.let { damagedAssembly("nobody reads what is known at $it") }
        var at = 0L
        made = 0
        val pieces = parts.map { part ->
            val piece = when (part.source) {
                Source.OWN -> {
                    if (part.nbytes !in 0..own.limit() - at) damagedAssembly("it is too short")
                    own.between(at.toInt(), (at + part.nbytes).toInt()).also { at += part.nbytes }
                }
                Source.KNOWN ->
                    computed.getOrNull(part.number.coerceIn(-1, Int.MAX_VALUE.toLong()).toInt())?.second
                        ?: damagedAssembly("it has no tensor ${part.number}")
                else -> stored(part.source, part.number, part.name)
            }
            if (piece.limit().toLong() != part.nbytes) damagedAssembly("a piece has ${piece.limit()} bytes, not ${part.nbytes}")
            made += part.nbytes
            if (made > most) damagedAssembly("its parts are $made bytes or more, of at most $most")
            piece
        }
        if (at != own.limit().toLong()) damagedAssembly("${own.limit() - at} bytes are left over")
        return pieces
    }

    companion object {
        /** Of the tables of a model with a hundred thousand operators. */
        private const val MOST = 1 shl 26

        /** As on the host (converter/program/assembly.py). */
        private const val TIMES = 4
        private const val LINE = '\n'.code.toByte()

        private fun adapted(name: String): Nothing = throw InputException(
            "$name has an adapter, and only the host merges it: export the state, and there call " +
                "program.export_inference or pocketune export"
        )

        /** Throws [DamagedProgramException]. */
        fun read(entry: ByteBuffer): Assembly {
            val data = inflated(entry)
            val end = (0 until data.limit()).firstOrNull { data.get(it) == LINE } ?: damagedAssembly("it has no list of parts")
            try {
                val contents = StrictJson.decode(Contents.serializer(), data.between(0, end))
                return Assembly(contents.parts, contents.known, data.between(end + 1, data.limit()))
            } catch (error: SerializationException) {
                damagedAssembly(error.lastLine())
            }
        }

        private fun inflated(entry: ByteBuffer): ByteBuffer {
            val inflater = Inflater()
            try {
                inflater.setInput(entry.copy())
                var data = ByteArray(1 shl 16)
                var size = 0
                while (!inflater.finished()) {
                    if (size == data.size) data = if (size < MOST) data.copyOf(2 * size) else damagedAssembly("it is too large")
                    val more = inflater.inflate(data, size, data.size - size)
                    if (more == 0 && !inflater.finished()) damagedAssembly("it is cut short")
                    size += more
                }
                return ByteBuffer.wrap(data).between(0, size)
            } catch (error: DataFormatException) {
                damagedAssembly(error.lastLine())
            } finally {
                inflater.end()
            }
        }
    }
}

/** Throws [DamagedProgramException]. */
internal fun damagedAssembly(problem: String): Nothing =
    throw DamagedProgramException("how its plain model is put together is damaged ($problem): copy or install it again")
