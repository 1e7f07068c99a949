package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.serialization.EncodeDefault
import kotlinx.serialization.ExperimentalSerializationApi
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException

private val MAGIC = "PTSTATE\n".toByteArray()
private const val VERSION = 2
private const val FORMAT = "pocketune-state/$VERSION"
private const val OLD_FORMAT = "pocketune-state/1"
private const val ALIGNMENT = 64
private const val FIXED = 16
private const val BODY = FIXED + 32
private const val MAX_HEADER = 4 shl 20
private const val MAX_GENERATION = 1L shl 53

/** How the names of slots began in version 1, which did not say what is one: of an optimizer, or the number of the call. */
private val OLD_SLOTS = listOf("optimizer/", "random/step")

/** How many bytes a file of these tensors takes at most. */
internal fun largestFile(tensors: List<StateTensor>): Long =
    BODY + MAX_HEADER + ALIGNMENT + tensors.sumOf { it.byteSize.toLong() + ALIGNMENT }

/** One tensor of a state: little-endian numbers, from 0 to the limit of [bytes]. */
internal class StoredTensor(val name: String, val dtype: Dtype, val shape: List<Int>, val bytes: ByteBuffer) {
    fun isFinite() = dtype != Dtype.FLOAT32 || bytes.isFinite()

    /** The first number of a float32. */
    fun number(): Float = bytes.between(0, bytes.limit()).asFloatBuffer().get(0)

    /** The numbers of an int32. */
    fun ints(): IntArray {
        val numbers = bytes.between(0, bytes.limit()).asIntBuffer()
        return IntArray(numbers.limit()) { numbers.get(it) }
    }
}

/** A state in a file; [spec] says what it belongs to and what its tensors are. */
internal class State(val spec: StateSpec, val generation: Long, val tensors: List<StoredTensor>)

/** [labels] are not written where there are none, as older versions wrote it. */
@Serializable
@OptIn(ExperimentalSerializationApi::class)
private class Header(
    val format: String,
    val program: String,
    val generation: Long,
    val identity: Identity?,
    val tensors: List<Entry>,
    @EncodeDefault(EncodeDefault.Mode.NEVER) val labels: List<List<String>> = emptyList(),
)

/** [offset] counts from the start of the data. */
@Serializable
private class Entry(
    val name: String,
    val dtype: Dtype,
    val shape: List<Int>,
    val offset: Long,
    val nbytes: Long,
    val sha256: String,
    val slot: Boolean,
    val model: ModelTensor?,
)

/** The header of version 1, which says nothing of the model. */
@Serializable
private class OldHeader(val format: String, val program: String, val generation: Long, val tensors: List<OldEntry>)

@Serializable
private class OldEntry(
    val name: String,
    val dtype: Dtype,
    val shape: List<Int>,
    val offset: Long,
    val nbytes: Long,
    val sha256: String,
)

/** The format of docs/state-file.md, byte for byte what the host writes. */
internal object StateFile {
    /**
     * The bytes of a state file.
     *
     * @throws DivergedException a tensor holds NaN or infinity; such a state is never written.
     */
    fun pack(state: State): ByteBuffer {
        var end = 0L
        val kinds = state.spec.tensors.associateBy { it.tensor }
        val entries = state.tensors.map { tensor ->
            if (!tensor.isFinite()) {
                throw DivergedException("the state is not saved: ${tensor.name} holds NaN or infinity")
            }
            val start = end.aligned()
            val size = tensor.bytes.limit().toLong()
            end = start + size
            val (sha256, kind) = tensor.bytes.sha256().toHex() to kinds.getValue(tensor.name)
            Entry(tensor.name, tensor.dtype, tensor.shape, start, size, sha256, kind.slot, kind.model)
        }
        val header = Header(FORMAT, state.spec.program, state.generation, state.spec.identity, entries, state.spec.labels)
        val text = StrictJson.encode(Header.serializer(), header)
        val start = (BODY + text.size).toLong().aligned()
        if (text.size > MAX_HEADER || start + end > Int.MAX_VALUE) throw InputException("the state is too large to save")
        val file = ByteBuffer.allocate((start + end).toInt()).order(ByteOrder.LITTLE_ENDIAN)
        file.put(MAGIC).putInt(VERSION).putInt(text.size)
        file.position(BODY)
        file.put(text)
        file.between(FIXED, BODY).put(digest(file, text.size))
        for ((entry, tensor) in entries.zip(state.tensors)) {
            val at = (start + entry.offset).toInt()
            file.between(at, at + tensor.bytes.limit()).fillFrom(tensor.bytes)
        }
        return file.apply { clear() }
    }

    /**
     * The state in the bytes of a file, of whatever program, as views of them.
     *
     * @param check is told what the state is before its tensors are looked at, and may refuse it.
     * @throws DamagedStateException a byte is missing, added or altered.
     * @throws StateVersionException the format is of another version.
     */
    fun unpack(bytes: ByteBuffer, check: (StateSpec) -> Unit = {}): State {
        val file = bytes.between(0, bytes.limit())
        if (!startsLikeOne(file) || file.limit() < BODY) damaged("it is no state file, or cut short")
        val length = file.getInt(12)
        if (length !in 0..minOf(MAX_HEADER, file.limit() - BODY)) damaged("its header is cut short")
        if (!digest(file, length).contentEquals(file.between(FIXED, BODY).copy())) damaged("its header is altered")
        val version = file.getInt(8)
        if (version !in 1..VERSION) {
            val advice = if (version > VERSION) "update the app" else "it was saved by an older version of the app"
            throw StateVersionException("its format version $version is not known here, only 1 to $VERSION: $advice")
        }
        val header = header(file.between(BODY, BODY + length), version)
        val kinds = header.tensors.map { StateTensor(it.name, it.shape, it.dtype, it.slot, it.model) }
        val spec = StateSpec(header.program, kinds, header.identity, header.labels).also(check)
        val start = (BODY + length).toLong().aligned()
        if (start > file.limit()) damaged("its padding is cut short")
        if (!file.between(BODY + length, start.toInt()).isZero()) damaged("its padding is altered")
        val tensors = tensors(header.tensors, file.between(start.toInt(), file.limit()))
        return State(spec, header.generation, tensors)
    }

    /** Whether a file was meant to be a state. */
    fun startsLikeOne(bytes: ByteBuffer): Boolean =
        bytes.limit() >= MAGIC.size && bytes.between(0, MAGIC.size).copy().contentEquals(MAGIC)

    private fun header(text: ByteBuffer, version: Int): Header {
        val header =
            try {
                if (version == 1) asNew(StrictJson.decode(OldHeader.serializer(), text))
                else StrictJson.decode(Header.serializer(), text)
            } catch (error: SerializationException) {
                damaged("its header is not as agreed (${error.lastLine()})")
            }
        if (header.format != if (version == 1) OLD_FORMAT else FORMAT) damaged("its header is of format '${header.format}'")
        try {
            header.identity?.let { ManifestFields.check("identity", it) }
            for (tensor in header.tensors) tensor.model?.let { ManifestFields.check(tensor.name, it) }
        } catch (error: FieldException) {
            damaged("its header is not as agreed (${error.message})")
        }
        header.tensors.firstOrNull { it.model?.gives(it.shape) == false }?.let { damaged("${it.name} has a bad view") }
        if (header.generation !in 1 until MAX_GENERATION) damaged("its generation is ${header.generation}")
        return header
    }

    private fun asNew(old: OldHeader): Header {
        val entries = old.tensors.map {
            // A slot has a name of its own, which no weight has.
            val isSlot = OLD_SLOTS.any { start -> it.name.startsWith(start) }
            Entry(it.name, it.dtype, it.shape, it.offset, it.nbytes, it.sha256, isSlot, model = null)
        }
        return Header(old.format, old.program, old.generation, identity = null, entries)
    }

    private fun tensors(entries: List<Entry>, data: ByteBuffer): List<StoredTensor> {
        val seen = HashSet<String>()
        var end = 0L
        val tensors = entries.map { entry ->
            // Where the entry must lie is computed, never believed: no sum of ours can overflow.
            val start = end.aligned()
            val size = entry.shape.product().let { if (it > data.limit()) -1 else it * entry.dtype.bytes }
            if (entry.shape.any { it < 1 } || entry.nbytes != size || !seen.add(entry.name)) {
                damaged("${entry.name} has a bad shape, size or name")
            }
            if (entry.offset != start) damaged("${entry.name} does not follow the tensor before it")
            if (start + size > data.limit()) damaged("the data of ${entry.name} is cut short")
            val bytes = data.between(start.toInt(), (start + size).toInt())
            if (!data.between(end.toInt(), start.toInt()).isZero() || bytes.sha256().toHex() != entry.sha256) {
                damaged("the data of ${entry.name} is altered")
            }
            if (entry.dtype == Dtype.FLOAT32 && !bytes.isFinite()) damaged("${entry.name} holds NaN or infinity")
            end = start + size
            StoredTensor(entry.name, entry.dtype, entry.shape, bytes)
        }
        if (end != data.limit().toLong()) damaged("${data.limit() - end} bytes follow the last tensor")
        return tensors
    }

    /** sha256 of the fixed part and the header. */
    private fun digest(file: ByteBuffer, length: Int): ByteArray {
        val covered = ByteBuffer.allocate(FIXED + length)
        covered.put(file.between(0, FIXED)).put(file.between(BODY, BODY + length))
        return covered.sha256()
    }

    private fun ByteBuffer.isZero() = (0 until limit()).all { get(it) == 0.toByte() }

    private fun Long.aligned() = (this + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT

    private fun damaged(problem: String): Nothing = throw DamagedStateException(problem)
}
