package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable

/** What a memory keeps to be replayed: rows as the model takes them, or what its frozen first layers gave. */
@Serializable
enum class Keeps {
    @SerialName("inputs") INPUTS,
    @SerialName("features") FEATURES,
}

/** Shares are in millionths, so that every language writes the same number. */
internal const val MILLION = 1_000_000

/** Bytes of a row's number and label. */
private const val NUMBERED = 12

/** One array of a row, without the axis of the rows. */
@Serializable
internal data class RowTensor(val name: String, val dtype: Dtype, val shape: List<Int>) {
    val byteSize: Int get() = Math.multiplyExact(shape.product().toInt(), dtype.bytes)
}

/** The program that rows belong to. */
@Serializable
internal data class RowsOwner(val forward: String, val frozen: String, val int8: String, val version: Int)

internal fun ownerOf(identity: Identity): RowsOwner {
    val weights = identity.frozen.joinToString("") { "${it.name} ${it.digest}\n" }
    val digest = ByteBuffer.wrap(weights.toByteArray()).sha256().toHex()
    return RowsOwner(identity.forward, digest, identity.int8, identity.version)
}

/** Rows for one purpose; [rows] one behind the other: number, label, the arrays of [tensors]. */
internal class ReplayPart(val tensors: List<RowTensor>, val reservoir: Reservoir, val rows: ByteBuffer) {
    constructor(tensors: List<RowTensor>, capacity: Int, classes: Int) :
        this(tensors, Reservoir(capacity, classes), ByteBuffer.allocate(0).order(ByteOrder.LITTLE_ENDIAN))

    val rowBytes: Int get() = rowBytes(tensors)
    val size: Int get() = reservoir.labels.size

    /** The number of a row. */
    fun number(row: Int): Long = rows.getLong(row * rowBytes)

    /** The arrays of a row by name. */
    fun arrays(row: Int): Map<String, Values> {
        var at = row * rowBytes + NUMBERED
        return tensors.associate { tensor ->
            val from = at
            at += tensor.byteSize
            tensor.name to read(tensor, rows.between(from, at))
        }
    }

    /** One without the rows of a class. */
    fun without(label: Int): ReplayPart {
        val kept = reservoir.labels.indices.filter { reservoir.labels[it] != label }
        val after = ByteBuffer.allocate(kept.size * rowBytes).order(ByteOrder.LITTLE_ENDIAN)
        for (row in kept) after.put(rows.between(row * rowBytes, (row + 1) * rowBytes))
        return ReplayPart(tensors, reservoir.without(label), after.apply { clear() })
    }

    /** One with other rows at places that they take, in order: a later one may replace an earlier one. */
    fun with(after: Reservoir, come: List<PlacedRow>, arrays: (Int) -> Map<String, Values>): ReplayPart {
        val next = ByteBuffer.allocate(after.labels.size * rowBytes).order(ByteOrder.LITTLE_ENDIAN)
        next.put(rows.between(0, rows.limit()))
        for (row in come) {
            next.position(row.place * rowBytes)
            next.putLong(row.number).putInt(row.label)
            val given = arrays(row.row)
            for (tensor in tensors) write(next, tensor.dtype, given.getValue(tensor.name))
        }
        return ReplayPart(tensors, after, next.apply { clear() })
    }

    companion object {
        fun rowBytes(tensors: List<RowTensor>): Int = tensors.fold(NUMBERED) { sum, it -> Math.addExact(sum, it.byteSize) }

        private fun read(tensor: RowTensor, bytes: ByteBuffer): Values {
            val size = tensor.shape.product().toInt()
            return when (tensor.dtype) {
                Dtype.FLOAT32 -> Values.Floats(FloatArray(size) { bytes.getFloat(4 * it) })
                Dtype.BOOL -> Values.Bools(BooleanArray(size) { bytes.get(it) != 0.toByte() })
                Dtype.INT32 -> Values.Ints(IntArray(size) { bytes.getInt(4 * it) })
                Dtype.INT16 -> Values.Ints(IntArray(size) { bytes.getShort(2 * it).toInt() })
                Dtype.INT8 -> Values.Ints(IntArray(size) { bytes.get(it).toInt() })
                Dtype.UINT8 -> Values.Ints(IntArray(size) { bytes.get(it).toInt() and 0xff })
            }
        }

        private fun write(to: ByteBuffer, dtype: Dtype, values: Values) {
            when (values) {
                is Values.Floats -> values.array.forEach(to::putFloat)
                is Values.Bools -> values.array.forEach { to.put(if (it) 1 else 0) }
                is Values.Ints -> values.array.forEach {
                    when (dtype.bytes) {
                        4 -> to.putInt(it)
                        2 -> to.putShort(it.toShort())
                        else -> to.put(it.toByte())
                    }
                }
            }
        }
    }
}

/** A row that came as the [row]-th of a call, and where it lies. */
internal class PlacedRow(val row: Int, val number: Long, val label: Int, val place: Int)

/**
 * All that a memory holds.
 *
 * @property limit bytes of the file, at most.
 * @property heldOut millionths of the rows that are kept aside.
 * @property random state of the draws, which go on from there.
 * @property seen rows that came.
 * @property tags of the class that each label was of when its rows came.
 */
internal class ReplayContents(
    val owner: RowsOwner,
    val keeps: Keeps,
    val limit: Int,
    val heldOut: Int,
    val seed: Long,
    val random: Long,
    val seen: Long,
    val replay: ReplayPart,
    val aside: ReplayPart,
    val tags: List<Long>,
) {
    val classes: Int get() = replay.reservoir.seen.size

    fun with(
        random: Long = this.random,
        seen: Long = this.seen,
        replay: ReplayPart = this.replay,
        aside: ReplayPart = this.aside,
        tags: List<Long> = this.tags,
    ) = ReplayContents(owner, keeps, limit, heldOut, seed, random, seen, replay, aside, tags)

    /** One without the rows of a class. */
    fun without(label: Int) = with(replay = replay.without(label), aside = aside.without(label), tags = tagged(label, ClassTags.UNKNOWN))

    /** The tags, with another one of a label. */
    fun tagged(label: Int, tag: Long): List<Long> = tags.mapIndexed { i, each -> if (i == label) tag else each }

    /** One with the tags of classes as they are now, for each class that rows came of. */
    fun tagged(now: List<Long>) = with(
        tags = now.mapIndexed { label, tag ->
            if (replay.reservoir.seen[label] > 0 || aside.reservoir.seen[label] > 0) tag else ClassTags.UNKNOWN
        },
    )

    /** What becomes of rows that come, one after another, by their labels; null of one that counts nothing. */
    fun offer(labels: List<Int?>): Offered {
        val draws = Draws(random)
        val (replayed, held) = Balancing(replay.reservoir) to Balancing(aside.reservoir)
        val isAside = BooleanArray(labels.size)
        val places = labels.mapIndexed { row, label ->
            if (label == null) return@mapIndexed null
            isAside[row] = heldOut > 0 && draws.next(MILLION) < heldOut
            (if (isAside[row]) held else replayed).offer(label, draws)?.let { PlacedRow(row, seen + row, label, it) }
        }
        return Offered(this, isAside, places.filterNotNull(), draws.state, replayed.result(), held.result())
    }
}

/** What becomes of rows that come: [isAside] says which are held out. */
internal class Offered(
    val before: ReplayContents,
    val isAside: BooleanArray,
    private val places: List<PlacedRow>,
    private val random: Long,
    private val replay: Reservoir,
    private val aside: Reservoir,
) {
    /** The contents with these rows; [replayed] and [held] give the arrays of a row. */
    fun contents(replayed: (Int) -> Map<String, Values>, held: (Int) -> Map<String, Values>): ReplayContents {
        val (isHeld, others) = places.partition { isAside[it.row] }
        return before.with(
            random,
            before.seen + isAside.size,
            before.replay.with(replay, others, replayed),
            before.aside.with(aside, isHeld, held),
        )
    }
}
