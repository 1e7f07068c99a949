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
 * @property most bytes of all of them together.
 */
internal class TwoGenerations(private val file: File, private val disk: Disk, private val most: Long) {
    private val older = File(file.path + ".previous")
    private val partial = File(file.path + ".partial")

    /** What a file holds: a good state of the program, or what is wrong with it. */
    private class Found(val state: State?, val problem: StateException?, val isOurs: Boolean)

    /** The newest good generation. Throws [StateException] and [StorageException]. */
    fun load(program: String): Loaded {
        val newest = find(file, program)
        if (newest?.state != null) return Loaded(newest.state, null)
        newest?.problem?.let { if (it is ForeignStateException || it is StateVersionException) throw it }
        val previous = find(older, program)
        val reason = newest?.problem?.message ?: "it is missing"
        if (previous?.state != null) return Loaded(previous.state, reason)
        if (newest == null && previous == null) throw NoStateException("$file: there is no such state file")
        throw DamagedStateException("$file: $reason; ${older.name}: ${previous?.problem?.message ?: "it is missing"}")
    }

    /** The generation before the newest; null when there is none. Throws [StateException] when it is not good. */
    fun previous(program: String): State? {
        val found = find(older, program) ?: return null
        return found.state ?: throw checkNotNull(found.problem)
    }

    /**
     * Writes the next generation and returns its number.
     *
     * @throws StateException the file holds something that is no state of this program, and is not overwritten.
     * @throws DivergedException a tensor is not finite; nothing was touched.
     * @throws StorageException the disk is full or refuses; the old state still stands.
     */
    fun save(program: String, tensors: List<StoredTensor>): Long {
        val newest = find(file, program)
        val previous = find(older, program)
        newest?.problem?.let { problem ->
            val isReplaced = problem is DamagedStateException && (previous?.state != null || newest.isOurs)
            if (!isReplaced) throw problem
        }
        val generation = 1 + maxOf(newest?.state?.generation ?: 0, previous?.state?.generation ?: 0)
        val data = StateFile.pack(State(program, generation, tensors))
        if (3L * data.limit() > most) {
            throw StorageException("$file is not written: it needs three times ${data.limit()} bytes of $most allowed")
        }
        write(data, keepsNewest = newest?.state != null)
        return generation
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
            disk.write(partial, data)
            // A damaged file must not take the place of a good older one.
            if (keepsNewest) disk.rename(file, older)
            disk.rename(partial, file)
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

    private fun find(at: File, program: String): Found? {
        val data = storing("read") { disk.read(at, most) } ?: return null
        val isOurs = data.limit() == 0 || StateFile.startsLikeOne(data)
        return try {
            val state = StateFile.unpack(data)
            if (state.program == program) Found(state, null, isOurs) else Found(null, foreign(at, state, program), isOurs)
        } catch (error: StateException) {
            Found(null, error, isOurs)
        }
    }

    private fun foreign(at: File, state: State, program: String) = ForeignStateException(
        "$at belongs to another program (hash ${state.program.take(12)}..., and this one is ${program.take(12)}...)",
    )

    private fun <T> storing(what: String, work: () -> T): T =
        try {
            work()
        } catch (error: IOException) {
            throw StorageException("$file cannot be $what: ${error.lastLine()}", error)
        }
}
