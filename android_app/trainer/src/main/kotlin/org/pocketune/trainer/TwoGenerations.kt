package org.pocketune.trainer

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer

/** A state that was read; [lost]: why the newest one could not be used, null when it could. */
internal class Loaded(val state: State, val lost: String?)

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

    /** What a file holds: a good state of the program, or what is wrong with it. */
    private class Found(val state: State?, val problem: StateException?, val isOurs: Boolean)

    /** The newest good generation. Throws [StateException] and [StorageException]. */
    fun load(): Loaded {
        val newest = find(file)
        if (newest?.state != null) return Loaded(newest.state, null)
        newest?.problem?.let { if (it is ForeignStateException || it is StateVersionException) throw it }
        val previous = find(older)
        val reason = newest?.problem?.message ?: "it is missing"
        if (previous?.state != null) return Loaded(previous.state, reason)
        if (newest == null && previous == null) throw NoStateException("$file: there is no such state file")
        throw DamagedStateException("$file: $reason; ${older.name}: ${previous?.problem?.message ?: "it is missing"}")
    }

    /** The generation before the newest; null when there is none. Throws [StateException] when it is not good. */
    fun previous(): State? {
        val found = find(older) ?: return null
        return found.state ?: throw checkNotNull(found.problem)
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
        val data = StateFile.pack(State(states.program, generation, tensors))
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

    private fun find(at: File): Found? {
        // A larger file is none of this program, whatever else it is: one byte more is enough to know.
        val data = storing("read") { disk.read(at, minOf(most, states.largest) + 1) } ?: return null
        val isOurs = data.limit() == 0 || StateFile.startsLikeOne(data)
        return try {
            Found(StateFile.unpack(data, states.program), null, isOurs)
        } catch (error: ForeignStateException) {
            Found(null, ForeignStateException("$at: ${error.message}"), isOurs)
        } catch (error: StateException) {
            Found(null, error, isOurs)
        }
    }

    private fun <T> storing(what: String, work: () -> T): T =
        try {
            work()
        } catch (error: IOException) {
            throw StorageException("$file cannot be $what: ${error.lastLine()}", error)
        }
}
