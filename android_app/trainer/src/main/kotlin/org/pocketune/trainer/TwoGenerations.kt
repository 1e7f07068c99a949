package org.pocketune.trainer

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer

/**
 * A state that was read, and what the program makes of it. [lost]: why the newest one could not be used, null when it
 * could.
 */
internal class Loaded(val state: Taken, val lost: String?)

/** A good state of a file, and what the program makes of it. */
internal class Taken(val program: String, val generation: Long, val compared: Compared) {
    /** As the program stores them. */
    val tensors: List<StoredTensor> get() = compared.tensors
}

/**
 * A state file and the one saved before it (docs/state-file.md). A crash at any point leaves at least the last save that
 * had finished.
 *
 * @property file the newest; the older is `NAME.previous`, one being written `NAME.partial`.
 * @property states what the program takes.
 * @property most bytes of all of them together.
 */
internal class TwoGenerations(
    private val file: File,
    private val states: StateSpec,
    private val disk: Disk,
    private val most: Long,
) {
    private val older = File(file.path + ".previous")
    private val partial = File(file.path + ".partial")

    /** Graph hashes of other programs, parts of whose states were taken over: these states may be overwritten. */
    private val adopted = HashSet<String>()

    /** What a file holds: a good state of the program, or what is wrong with it. */
    private class Found(val state: Taken?, val problem: StateException?, val isOurs: Boolean)

    /**
     * The newest good generation; with [adopt] that of whatever program. Throws [StateException] and [StorageException].
     */
    fun load(adopt: Adopt? = null): Loaded {
        val newest = find(file, takesAny = adopt != null)
        if (newest?.state != null) return Loaded(newest.state, null).also { adopted += newest.state.program }
        newest?.problem?.let { if (it is ForeignStateException || it is StateVersionException) throw it }
        val previous = find(older, takesAny = adopt != null)
        val reason = newest?.problem?.message ?: "it is missing"
        if (previous?.state != null) return Loaded(previous.state, reason).also { adopted += previous.state.program }
        if (newest == null && previous == null) throw NoStateException("$file: there is no such state file")
        throw DamagedStateException("$file: $reason; ${older.name}: ${previous?.problem?.message ?: "it is missing"}")
    }

    /**
     * The generation before the newest; null when there is none, or one of another program, parts of which were taken
     * over. Throws [StateException] when it is not good.
     */
    fun previous(): Taken? {
        val found = find(older)?.takeUnless { it.problem is ForeignStateException } ?: return null
        val state = found.state ?: throw checkNotNull(found.problem)
        return state.takeIf { it.compared.differences.isEmpty() }
    }

    /**
     * Writes the next generation and returns its number.
     *
     * @throws StateException the file holds something that is no state of this program, and is not overwritten.
     * @throws DivergedException a tensor is not finite; nothing was touched.
     * @throws StorageException the disk is full or refuses; the old state still stands.
     */
    fun save(tensors: List<StoredTensor>): Long {
        val newest = find(file)
        val previous = find(older)
        checkReplaceable(newest, previous)
        val generation = 1 + maxOf(newest?.state?.generation ?: 0, previous?.state?.generation ?: 0)
        val data = StateFile.pack(State(states, generation, tensors))
        if (3L * data.limit() > most) {
            throw StorageException("$file is not written: it needs three times ${data.limit()} bytes of $most allowed")
        }
        write(data, keepsNewest = newest?.state != null)
        return generation
    }

    /** Throws [StateException] where [save] would. */
    fun checkReplaceable() = checkReplaceable(find(file), find(older))

    private fun checkReplaceable(newest: Found?, previous: Found?) {
        val problem = newest?.problem ?: return
        val isReplaced = problem is DamagedStateException && (previous?.state != null || newest.isOurs)
        if (!isReplaced) throw problem
    }

    /**
     * Moves both generations out of the way, whatever they are, so that the next [save] begins anew: `.unusable` is added
     * to their names.
     */
    fun setAside() = storing("set aside") {
        for (at in listOf(older, file)) if (disk.read(at, 0) != null) disk.rename(at, File(at.path + ".unusable"))
        disk.flush(file.absoluteFile.parentFile)
    }

    /** Removes both generations. */
    fun delete() = storing("removed") { listOf(partial, file, older).forEach(disk::delete) }

    private fun write(data: ByteBuffer, keepsNewest: Boolean) = storing("written") {
        try {
            file.parentFile?.mkdirs()
            disk.delete(partial)
            disk.write(partial, sequenceOf(data))
            // A damaged file must not take the place of a good older one.
            if (keepsNewest) disk.rename(file, older)
            try {
                disk.rename(partial, file)
            } catch (error: IOException) {
                if (keepsNewest) disk.rename(older, file)
                throw error
            }
        } catch (error: IOException) {
            try {
                disk.delete(partial)
            } catch (second: IOException) {
                error.addSuppressed(second)
            }
            throw error
        }
        disk.flush(file.absoluteFile.parentFile)
    }

    private fun find(at: File, takesAny: Boolean = false): Found? {
        // A larger file is none of this program, whatever else it is: one byte more is enough to know. It may be that of
        // one whose state was adopted.
        val limit = if (takesAny || adopted.isNotEmpty()) most else minOf(most, states.largest)
        val data = storing("read") { disk.read(at, limit + 1) } ?: return null
        val isOurs = data.limit() == 0 || StateFile.startsLikeOne(data)
        return try {
            val state = StateFile.unpack(data) { spec ->
                val isTaken = takesAny || spec.program in adopted
                if (!isTaken && spec.saysLayouts) checkOwn(at, differences(spec, states))
                // Of an older version it shows in the tensors how they are laid out; these may have been left unread.
                val isTooLarge = spec.program != states.program && data.limit() > states.largest
                if (!isTaken && isTooLarge) checkOwn(at, listOf("it is larger than any of this program's"))
            }
            val found = Taken(state.spec.program, state.generation, compare(state, states))
            if (!takesAny && found.program !in adopted) checkOwn(at, found.compared.differences)
            checkUsable(at, found.compared)
            Found(found, null, isOurs)
        } catch (error: StateException) {
            Found(null, error, isOurs)
        }
    }

    private fun checkOwn(at: File, differences: List<String>) {
        if (differences.isEmpty()) return
        val said = differences.joinToString("; ")
        throw ForeignStateException("$at: it belongs to another program: $said. Restored with adopt 'matching' it gives what fits")
    }

    private fun checkUsable(at: File, found: Compared) {
        if (found.differences.isEmpty() && found.left.isNotEmpty()) {
            throw DamagedStateException("the tensors of the state are not those of this program")
        }
        if (!found.hasWeights) {
            val said = found.differences.joinToString("; ")
            throw ForeignStateException("$at: no weight of it matches one of this program: $said")
        }
    }

    private fun <T> storing(what: String, work: () -> T): T =
        try {
            work()
        } catch (error: IOException) {
            throw StorageException("$file cannot be $what: ${error.lastLine()}", error)
        }
}
