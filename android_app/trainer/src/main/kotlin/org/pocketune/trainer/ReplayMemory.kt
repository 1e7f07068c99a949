package org.pocketune.trainer

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder

private const val LIMIT = 4 shl 20
private const val HELD_OUT = 0.1
private const val MOST_HELD_OUT = 0.5
private const val SHARE = 0.5
private const val WEIGHT = "weight"

/** So many bytes of a file, its digest among them, tell whether it is the one that was read. */
private const val STAMP = 48

/** A replay memory cannot be used: it is damaged, of another program or version, or was begun with other numbers. */
class ReplayException(message: String) : PocketuneException(message)

/**
 * Rows of earlier trainings in a file of bounded size, against forgetting (docs/replay-memory.md). `Trainer.fit` mixes them
 * in, and new ones enter when it is done. A share of the rows is kept aside and never trained on. The file is written whole
 * or not at all. One object at a time may write to a file, and one training at a time goes with a memory.
 */
class ReplayMemory private constructor(
    /** The first rows begin it. */
    val file: File,
    private val kind: RowKind,
    private val disk: Disk,
    private var contents: ReplayContents,
    private var stamp: ByteArray?,
) {
    /** How many rows came, kept or not: those that come next are numbered from here. */
    val seen: Long get() = contents.seen

    /** Bytes of the file, at most. */
    val limit: Int get() = contents.limit

    /** What is kept to be replayed. A trainer here trains on [Keeps.INPUTS]. */
    val keeps: Keeps get() = contents.keeps

    /** How many rows to be replayed there are of each label; of rows without labels all are of 0. */
    fun counts(): Map<Int, Int> = contents.replay.reservoir.labels.asList().groupingBy { it }.eachCount().toSortedMap()

    /** The rows to be replayed. Throws [InputException] where features are kept. */
    fun replayed(): List<Sample> {
        if (keeps != Keeps.INPUTS) throw InputException("$file keeps features: there are no inputs to be given")
        return samples(contents.replay)
    }

    /** The rows that were kept aside, for `evaluate` and `heldOut`. */
    fun heldOut(): List<Sample> = samples(contents.aside)

    /**
     * Removes all rows of a label, as when its class is forgotten. Throws [InputException] for a label that there is not,
     * [StorageException] and [ReplayException].
     */
    fun forget(label: Int) {
        checkLabel(label)
        write(contents.without(label))
    }

    /** Says that a label is of the same class as before, which has another name: its rows stay. Throws as [forget]. */
    fun rename(label: Int, name: String) {
        checkLabel(label)
        write(contents.with(tags = contents.tagged(label, ClassTags.of(name))))
    }

    private fun checkLabel(label: Int) {
        val most = contents.classes - 1
        if (label !in 0..most) throw InputException("label: a whole number from 0 to $most, the labels of $file, not $label")
    }

    /**
     * Throws [ReplayException] where rows are of another class than the one that has their label now by [names], where an
     * empty one is of no class; null: they are not known.
     */
    private fun checkClasses(names: List<String>?) {
        if (names == null || names.size != contents.classes) return
        val kept = listOf(contents.replay, contents.aside).flatMap { it.reservoir.labels.asList() }.toSortedSet()
        for (label in kept) {
            val before = contents.tags[label]
            val name = names[label]
            if (before == ClassTags.UNKNOWN || before == ClassTags.of(name)) continue
            throw ReplayException(
                "$file: its rows of label $label came under another name, and the label is of " +
                    "${if (name.isEmpty()) "no class" else "'$name'"} now. forget($label) removes them; rename($label, name) " +
                    "keeps them, if it is the class of before under another name"
            )
        }
    }

    /** What becomes of checked rows; nothing is written yet. Throws as [checkClasses], by the same [names]. */
    internal fun visit(samples: List<Sample>, names: List<String>? = null): Visit {
        if (keeps != Keeps.INPUTS) {
            throw InputException("$file keeps features, and a training here takes inputs: begin another file that keeps these")
        }
        checkClasses(names)
        val labels = samples.map { sample -> kind.labelOf(sample).takeIf { sample.weight > 0 } }
        val tags = names?.takeIf { it.size == contents.classes }?.map(ClassTags::of) ?: contents.tags
        return Visit(samples, contents.offer(labels), tags)
    }

    /** Throws [ReplayException] for a memory of another program. */
    internal fun checkBelongsTo(manifest: Manifest) {
        RowKind(manifest).difference(contents)?.let { throw ReplayException("$file: it belongs to another program: $it") }
    }

    private fun samples(part: ReplayPart): List<Sample> = List(part.size) { kind.sample(part.arrays(it)) }

    private fun write(next: ReplayContents) {
        val data = ReplayFile.pack(next)
        try {
            val there = disk.read(file, STAMP.toLong())?.copy()
            if (!there.contentEquals(stamp)) {
                throw ReplayException("$file is not as it was when it was opened: another wrote to it, or removed it. Open it again")
            }
            disk.replace(file, sequenceOf(data))
        } catch (error: IOException) {
            throw StorageException("$file cannot be written: ${error.lastLine()}", error)
        }
        contents = next
        stamp = data.between(0, STAMP).copy()
    }

    /** Rows on their way into the memory. */
    internal inner class Visit(private val samples: List<Sample>, private val offered: Offered, private val tags: List<Long>) {
        /** Those that are not held out. */
        val trained: List<Sample> get() = samples.filterIndexed { row, _ -> !offered.isAside[row] }

        /** Writes the memory with all of them. Throws [StorageException] and [ReplayException]; the file then stays. */
        fun enter() {
            if (offered.before !== contents) throw ReplayException("$file: rows came while others were on their way")
            val arrays = { row: Int -> kind.arrays(samples[row]) }
            write(offered.contents(arrays, arrays).tagged(tags))
        }
    }

    companion object {
        /**
         * Opens a memory, or begins one. What a file was begun with stays: null takes it.
         *
         * @param limit bytes of the file, 4 MiB.
         * @param heldOut share of the rows that are kept aside, 0 to 0.5; 0.1.
         * @param keeps inputs.
         * @param seed of the draws; 0.
         * @throws ReplayException the file is damaged or no memory, belongs to another program, or was begun with other
         *   numbers.
         * @throws InputException the limit has no room for a row, or the program cannot have a memory.
         * @throws StorageException the file cannot be read.
         */
        fun open(
            file: File,
            program: Program,
            limit: Int? = null,
            heldOut: Double? = null,
            keeps: Keeps? = null,
            seed: Long? = null,
        ): ReplayMemory = open(file, program.manifest, Wanted(limit, heldOut, keeps, seed), RealDisk)

        internal fun open(file: File, manifest: Manifest, wanted: Wanted, disk: Disk): ReplayMemory {
            wanted.check()
            val kind = RowKind(manifest)
            val data = try {
                disk.read(file, Int.MAX_VALUE.toLong())
            } catch (error: IOException) {
                throw StorageException("$file cannot be read: ${error.lastLine()}", error)
            }
            if (data == null) return ReplayMemory(file, kind, disk, kind.begin(wanted), null)
            val contents = try {
                ReplayFile.unpack(data) { there ->
                    kind.difference(there)?.let { throw ReplayException("it belongs to another program: $it") }
                    wanted.difference(there)?.let { throw ReplayException(it) }
                }
            } catch (error: ReplayException) {
                throw ReplayException("$file: ${error.message}")
            }
            return ReplayMemory(file, kind, disk, contents, data.between(0, STAMP).copy())
        }
    }
}

/** What a memory is asked to be; null: as it is, or as usual. */
internal class Wanted(val limit: Int? = null, val heldOut: Double? = null, val keeps: Keeps? = null, val seed: Long? = null) {
    private val millionths: Int? get() = heldOut?.let { (it * MILLION + 0.5).toInt() }

    fun check() {
        if (limit != null && limit < 0) throw InputException("limit: bytes from 0 on, not $limit")
        if (heldOut != null && heldOut !in 0.0..MOST_HELD_OUT) {
            throw InputException("heldOut: a share from 0 to $MOST_HELD_OUT, not $heldOut")
        }
        if (seed != null && seed !in 0 until (1L shl 53)) throw InputException("seed: from 0 to 2^53 - 1, not $seed")
    }

    /** Why a memory is not as it is wanted; null where it is. */
    fun difference(there: ReplayContents): String? = when {
        limit != null && limit != there.limit -> "limit ${there.limit}, not $limit"
        heldOut != null && millionths != there.heldOut -> "heldOut ${there.heldOut / MILLION.toDouble()}, not $heldOut"
        keeps != null && keeps != there.keeps -> "keeps ${there.keeps}, not $keeps"
        seed != null && seed != there.seed -> "seed ${there.seed}, not $seed"
        else -> null
    }?.let { "it was begun with $it: open it without that, or begin another file" }

    fun begin(owner: RowsOwner, replay: ReplayPart, aside: ReplayPart): ReplayContents {
        val held = millionths ?: (HELD_OUT * MILLION).toInt()
        return ReplayFile.begin(owner, keeps ?: Keeps.INPUTS, limit ?: LIMIT, held, seed ?: 0, replay, aside)
    }

    /** Whether rows are kept aside. */
    val judges: Boolean get() = (heldOut ?: HELD_OUT) > 0
}

/** What a row of a program is: its arrays, its class, and whose it is. */
internal class RowKind(private val manifest: Manifest) {
    private val inputs = manifest.step.taking(Role.INPUT)
    private val targets = manifest.step.taking(Role.TARGET)
    private val owner = manifest.identity?.let(::ownerOf) ?: throw InputException(
        "${manifest.name} was built by an older Pocketune and does not say what it computes, so rows cannot be kept for " +
            "it: build it again"
    )

    /** What the loss takes for the only target, where a row of it is of one class. */
    private val labels: TargetLabels? = manifest.onlyLabels?.takeIf {
        val (count, target) = it.count to targets.single()
        if (count != null) target.rowSize == if (target.dtype == Dtype.FLOAT32) count else 1
        else target.rowSize == 1 && (it.only.isNotEmpty() || it.least == 0.0 && it.most == 1.0)
    }
    private val classes: Int = labels?.run { count ?: only.size.takeIf { it > 0 } ?: 2 } ?: 1

    /** The class of a row; null of one whose label the loss leaves out. */
    fun labelOf(sample: Sample): Int? {
        val known = labels ?: return 0
        return when (val target = checkNotNull(sample.target)) {
            is Values.Floats -> when {
                known.only.isNotEmpty() -> known.only.indexOfFirst { it.toFloat() == target.array[0] }
                known.count != null -> target.array.indices.maxByOrNull { target.array[it] }
                else -> if (target.array[0] >= 0.5f) 1 else 0
            }
            is Values.Ints -> target.array[0].takeIf { it in 0 until checkNotNull(known.count) && it != known.ignored }
            is Values.Bools -> 0
        }
    }

    /** The arrays of a row by the names of the step. */
    fun arrays(sample: Sample): Map<String, Values> =
        inputs.associate { it.name to sample.inputs.getValue(it.name) } +
            targets.associate { it.name to sample.targets.getValue(it.label) } +
            (WEIGHT to Values.Floats(floatArrayOf(sample.weight)))

    fun sample(arrays: Map<String, Values>): Sample {
        val weight = (arrays.getValue(WEIGHT) as Values.Floats).array[0]
        return Sample(
            inputs.associate { it.name to arrays.getValue(it.name) },
            targets.associate { it.label to arrays.getValue(it.name) },
            weight,
        )
    }

    /** Empty contents. */
    fun begin(wanted: Wanted): ReplayContents {
        if (manifest.byLength(manifest.stepName).isNotEmpty()) {
            throw InputException("${manifest.name} takes rows of several lengths, and rows of a memory are of one size: build it with one")
        }
        if (wanted.judges && manifest.evaluate == null) {
            throw InputException("${manifest.name} has no signature 'evaluate', which held-out rows are for: build it with one, or pass heldOut = 0.0")
        }
        if (wanted.keeps == Keeps.FEATURES && "features" !in manifest.signatures) {
            throw InputException("${manifest.name} has no signature 'features': build it with one, or keep inputs")
        }
        return wanted.begin(owner, ReplayPart(rowOf(wanted.keeps ?: Keeps.INPUTS), 0, classes), ReplayPart(rowOf(Keeps.INPUTS), 0, classes))
    }

    /** What tells a memory's program from this one, in words; null where rows of the one are rows of the other. */
    fun difference(there: ReplayContents): String? {
        val isKept = there.keeps == Keeps.FEATURES
        return when {
            there.owner.version != owner.version ->
                "it was built by another version of Pocketune, and whether both compute the same cannot be told"
            there.owner.forward != owner.forward -> "the forward computation differs, or the head of a file of several"
            isKept && there.owner.frozen != owner.frozen -> "the frozen weights differ, and features are kept"
            isKept && there.owner.int8 != owner.int8 -> "other frozen layers are rounded there, and features are kept"
            isKept && "features" !in manifest.signatures -> "features are kept, and this program has no signature 'features'"
            there.replay.tensors != rowOf(there.keeps) -> rows(there.replay.tensors, rowOf(there.keeps))
            there.aside.tensors != rowOf(Keeps.INPUTS) -> rows(there.aside.tensors, rowOf(Keeps.INPUTS))
            there.classes != classes -> "it balances ${there.classes} classes, and this program has $classes"
            else -> null
        }
    }

    private fun rowOf(keeps: Keeps): List<RowTensor> {
        val name = if (keeps == Keeps.FEATURES) "${manifest.stepName}_features" else manifest.stepName
        val step = manifest.calls.getValue(name)
        val taken = listOf(Role.INPUT, Role.TARGET, Role.WEIGHT).flatMap(step::taking)
        return taken.map { RowTensor(it.name, it.dtype, it.shape.drop(1)) }
    }

    private fun rows(theirs: List<RowTensor>, ours: List<RowTensor>): String {
        val (there, here) = listOf(theirs, ours).map { row -> row.joinToString { "${it.name} ${it.dtype.name.lowercase()}${it.shape}" } }
        return "its rows are $there, and those of this program $here"
    }
}

/** What a training goes through: with a memory fewer samples, more to replay, and more that are held out. */
internal class Curated(val samples: List<Sample>, val plan: Plan, val heldOut: List<Sample>, val enter: () -> Unit) {
    companion object {
        /**
         * With a memory; [names] are those of the classes, null where none are kept. Throws [InputException] where no sample is
         * left to train on, and [ReplayException] for another's memory.
         */
        fun of(memory: ReplayMemory, names: List<String>?, samples: List<Sample>, plan: Plan, heldOut: List<Sample>): Curated {
            val visit = memory.visit(samples, names)
            val trained = visit.trained
            if (trained.none { it.weight > 0 }) {
                throw InputException(
                    "samples: all ${samples.size} are kept aside by the memory, and none is left to train on: pass more in a " +
                        "call, or add them with remember"
                )
            }
            val replay = Replay(plan.replay?.samples.orEmpty() + memory.replayed(), plan.replay?.share ?: SHARE)
            return Curated(trained, plan.with(replay), heldOut + memory.heldOut(), visit::enter)
        }
    }
}
