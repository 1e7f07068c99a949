package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException

private val MAGIC = "PTMEMRY\n".toByteArray()
private const val VERSION = 2
private const val FORMAT = "pocketune-memory/$VERSION"
private const val ALIGNMENT = 64
private const val FIXED = 16
private const val BODY = FIXED + 32
private const val MAX_HEADER = 1 shl 20
private const val CLASS = 8

/** Bytes of a class in all: of both parts, and its tag. */
private const val OF_CLASS = 2 * CLASS + ClassTags.BYTES
private const val MAX_EXACT = 1L shl 53

/** What the numbers of a header may add to it as they grow. */
private const val GROWS = 256

/** The format of docs/replay-memory.md, byte for byte what the host writes. */
internal object ReplayFile {
    @Serializable
    private class Entry(val row: List<RowTensor>, val capacity: Int, val rows: Int)

    @Serializable
    private class Header(
        val format: String,
        val program: RowsOwner,
        val keeps: Keeps,
        val limit: Int,
        @SerialName("held_out") val heldOut: Int,
        val seed: Long,
        val random: Long,
        val seen: Long,
        val classes: Int,
        val replay: Entry,
        val heldout: Entry,
        val sha256: String,
    )

    /** Contents without rows, with room for as many as the limit allows. Throws [InputException] for none. */
    fun begin(owner: RowsOwner, keeps: Keeps, limit: Int, heldOut: Int, seed: Long, replay: ReplayPart, aside: ReplayPart): ReplayContents {
        val empty = ReplayContents(owner, keeps, limit, heldOut, seed, 0, 0, replay, aside, List(replay.reservoir.seen.size) { ClassTags.UNKNOWN })
        val start = (BODY + text(empty, ByteArray(32)).size + GROWS).toLong().aligned()
        val room = limit - start - OF_CLASS.toLong() * empty.classes
        val held = (maxOf(room, 0) * heldOut / MILLION / aside.rowBytes).toInt()
        val rows = Math.floorDiv(room - held.toLong() * aside.rowBytes, replay.rowBytes.toLong()).toInt()
        if (rows < 1 || heldOut > 0 && held < 1) {
            throw InputException(
                "limit: $limit bytes have no room for rows of ${replay.rowBytes} bytes and held-out ones of ${aside.rowBytes}"
            )
        }
        val parts = listOf(replay to rows, aside to held).map { (part, size) -> ReplayPart(part.tensors, size, empty.classes) }
        return empty.with(Draws.seeded(seed).state, replay = parts[0], aside = parts[1])
    }

    /** The bytes of the file: at most as many as its limit. */
    fun pack(contents: ReplayContents): ByteBuffer {
        val parts = listOf(contents.replay, contents.aside)
        val data = ByteBuffer.allocate(OF_CLASS * contents.classes + parts.sumOf { it.rows.limit() })
        data.order(ByteOrder.LITTLE_ENDIAN)
        for (part in parts) for (label in 0 until contents.classes) {
            data.putInt(part.reservoir.seen[label]).putInt(if (part.reservoir.full[label]) 1 else 0)
        }
        contents.tags.forEach(data::putLong)
        for (part in parts) data.put(part.rows.between(0, part.rows.limit()))
        data.clear()
        val text = text(contents, data.sha256())
        val start = (BODY + text.size).toLong().aligned().toInt()
        val file = ByteBuffer.allocate(start + data.limit()).order(ByteOrder.LITTLE_ENDIAN)
        file.put(MAGIC).putInt(VERSION).putInt(text.size)
        file.position(BODY)
        file.put(text)
        file.between(FIXED, BODY).put(digest(file, text.size))
        file.between(start, file.limit()).put(data)
        return file.apply { clear() }
    }

    /**
     * The contents of a file.
     *
     * @param check is told of the contents without rows before these are looked at, and may refuse them.
     * @throws ReplayException a byte is missing, added or altered, or the format is of another version.
     */
    fun unpack(bytes: ByteBuffer, check: (ReplayContents) -> Unit = {}): ReplayContents {
        val file = bytes.between(0, bytes.limit())
        val (header, start) = header(file)
        val entries = listOf(header.replay, header.heldout)
        val (replay, aside) = entries.map { ReplayPart(it.row, it.capacity, header.classes) }
        val unknown = List(header.classes) { ClassTags.UNKNOWN }
        val empty = header.run { ReplayContents(program, keeps, limit, heldOut, seed, random, seen, replay, aside, unknown) }
        check(empty)
        val table = CLASS.toLong() * header.classes
        val ends = entries.runningFold(start + OF_CLASS.toLong() * header.classes) { end, it -> end + it.rows.toLong() * ReplayPart.rowBytes(it.row) }
        if (file.limit().toLong() != ends.last()) damaged("it is cut short, or bytes follow its last row")
        val data = file.between(start.toInt(), file.limit())
        if (data.sha256().toHex() != header.sha256) damaged("its rows are altered")
        val parts = entries.mapIndexed { i, entry ->
            val classes = file.between((start + i * table).toInt(), (start + (i + 1) * table).toInt())
            part(entry, classes, file.between(ends[i].toInt(), ends[i + 1].toInt()), header.seen)
        }
        val numbers = parts.flatMap { part -> List(part.size, part::number) }
        if (numbers.toSet().size != numbers.size) damaged("a row is there twice")
        val tags = List(header.classes) { file.getLong((start + 2 * table).toInt() + it * ClassTags.BYTES) }
        return empty.with(replay = parts[0], aside = parts[1], tags = tags)
    }

    private fun part(entry: Entry, classes: ByteBuffer, rows: ByteBuffer, seen: Long): ReplayPart {
        val bytes = ReplayPart.rowBytes(entry.row)
        val count = classes.limit() / CLASS
        val labels = IntArray(entry.rows) { rows.getInt(it * bytes + Long.SIZE_BYTES) }
        val came = IntArray(count) { classes.getInt(it * CLASS) }
        val marks = IntArray(count) { classes.getInt(it * CLASS + Int.SIZE_BYTES) }
        val areBad = labels.any { it !in 0 until count } || marks.any { it !in 0..1 } ||
            labels.indices.any { rows.getLong(it * bytes) !in 0 until seen }
        if (areBad) damaged("a row has a bad number or label, or a class a bad mark")
        val kept = IntArray(count).also { for (label in labels) it[label]++ }
        if (kept.indices.any { kept[it] > came[it] }) damaged("more rows of a class are there than came")
        val part = ReplayPart(entry.row, Reservoir(entry.capacity, labels, came, BooleanArray(count) { marks[it] == 1 }), rows)
        for (row in labels.indices) for ((name, values) in part.arrays(row)) {
            if (values is Values.Floats && !values.array.all { it.isFinite() }) damaged("$name holds NaN or infinity")
        }
        return part
    }

    private fun header(file: ByteBuffer): Pair<Header, Long> {
        val isOne = file.limit() >= BODY && file.between(0, MAGIC.size).copy().contentEquals(MAGIC)
        if (!isOne) damaged("it is no replay memory, or cut short")
        val length = file.getInt(12)
        if (length !in 0..minOf(MAX_HEADER, file.limit() - BODY)) damaged("its header is cut short")
        if (!digest(file, length).contentEquals(file.between(FIXED, BODY).copy())) damaged("its header is altered")
        val version = file.getInt(8)
        if (version != VERSION) throw ReplayException("it is of format version $version, and $VERSION is known here: update the app, or begin another file")
        val header = try {
            StrictJson.decode(Header.serializer(), file.between(BODY, BODY + length))
        } catch (error: SerializationException) {
            damaged("its header is not as agreed (${error.lastLine()})")
        }
        val start = (BODY + length).toLong().aligned()
        if (start > file.limit() || (BODY + length until start.toInt()).any { file.get(it) != 0.toByte() } || header.isBad()) {
            damaged("its header is not as agreed (a number out of range)")
        }
        return header to start
    }

    private fun Header.isBad(): Boolean {
        val entries = listOf(replay, heldout)
        val tensors = entries.flatMap { it.row }
        return format != FORMAT || limit < 0 || heldOut !in 0..MILLION / 2 || seed !in 0..MAX_EXACT ||
            random !in 0 until (1L shl 48) || seen !in 0 until MAX_EXACT || classes < 1 ||
            entries.any { it.capacity < 0 || it.rows !in 0..it.capacity } ||
            tensors.any { tensor -> tensor.shape.any { it < 1 } || tensor.shape.product() > Int.MAX_VALUE / 8 } ||
            entries.any { entry -> entry.row.sumOf { it.shape.product() * it.dtype.bytes } > Int.MAX_VALUE / 2 }
    }

    private fun text(c: ReplayContents, digest: ByteArray): ByteArray {
        val (replay, aside) = listOf(c.replay, c.aside).map { Entry(it.tensors, it.reservoir.capacity, it.size) }
        val header = Header(
            FORMAT, c.owner, c.keeps, c.limit, c.heldOut, c.seed, c.random, c.seen, c.classes, replay, aside, digest.toHex(),
        )
        return StrictJson.encode(Header.serializer(), header)
    }

    private fun digest(file: ByteBuffer, length: Int): ByteArray {
        val covered = ByteBuffer.allocate(FIXED + length)
        covered.put(file.between(0, FIXED)).put(file.between(BODY, BODY + length))
        return covered.apply { clear() }.sha256()
    }

    private fun Long.aligned() = (this + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT

    private fun damaged(problem: String): Nothing = throw ReplayException(problem)
}
