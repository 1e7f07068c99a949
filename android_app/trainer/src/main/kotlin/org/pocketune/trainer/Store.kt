package org.pocketune.trainer

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException

/**
 * Where the states of one program live: `NAME` and `NAME.previous` (docs/state-file.md), and while a training runs its
 * checkpoints. One trainer at a time may use it.
 *
 * @property directory made when it is missing.
 */
class Store internal constructor(val directory: File, val name: String, private val disk: Disk) {
    constructor(directory: File, name: String = "personal.state") : this(directory, name, RealDisk)

    /** The newest generation. */
    val file: File get() = File(directory, name)

    /** What the user keeps. */
    internal fun personal(states: StateSpec, limits: Limits) = TwoGenerations(file, states, disk, limits.diskBytes / 2)

    /** The unfinished training. */
    internal fun checkpoints(states: StateSpec, limits: Limits) =
        Checkpoints(File(directory, "$name.training"), states, disk, limits.diskBytes / 2)

    /** Writes a file for others, whole or not at all. Throws [StorageException], and what [pieces] throw. */
    internal fun write(file: File, pieces: Sequence<ByteBuffer>) {
        try {
            disk.replace(file, pieces)
        } catch (error: IOException) {
            throw StorageException("$file cannot be written: ${error.lastLine()}", error)
        }
    }

    /** A state file from elsewhere. */
    internal fun elsewhere(file: File, states: StateSpec, limits: Limits) =
        TwoGenerations(file, states, disk, limits.diskBytes)
}

/** How far an unfinished training had come. */
internal class Progress(val steps: Int, val tensors: List<StoredTensor>)

/**
 * The states of an unfinished training, and in a file beside them which training that is and how far it is. Whatever is
 * wrong with them, a training can start anew.
 */
internal class Checkpoints(file: File, spec: StateSpec, private val disk: Disk, most: Long) {
    private val states = TwoGenerations(file, spec, disk, most)
    private val note = File(file.path + ".json")
    private val partial = File(note.path + ".partial")

    @Serializable
    private class Note(val training: String, val generation: Long, val steps: Int)

    /** Saves [steps] steps of [training], a digest of all that decides its course. */
    fun save(training: String, steps: Int, tensors: List<StoredTensor>) {
        // First the state, then the note: the note's generation is always one of the two that are kept.
        val generation = try {
            states.save(tensors)
        } catch (_: StateException) {
            // Of another program, as before an update of the app, or damaged: nobody can go on from it.
            states.delete()
            states.save(tensors)
        }
        val text = StrictJson.encode(Note.serializer(), Note(training, generation, steps))
        try {
            disk.replace(note, sequenceOf(ByteBuffer.wrap(text)))
        } catch (error: IOException) {
            throw StorageException("$note cannot be written: ${error.lastLine()}", error)
        }
    }

    /** How far [training] had come; null when there is nothing of it. */
    fun load(training: String): Progress? {
        try {
            val text = disk.read(note, MOST_OF_NOTE) ?: return null
            val found = StrictJson.decode(Note.serializer(), text)
            if (found.training != training || found.steps < 1) return null
            val newest = states.load().state
            val state = newest.takeIf { it.generation == found.generation } ?: states.previous()
            return state?.takeIf { it.generation == found.generation }?.let { Progress(found.steps, it.tensors) }
        } catch (_: IOException) {
            return null
        } catch (_: SerializationException) {
            return null
        } catch (_: PocketuneException) {
            return null
        }
    }

    /** Removes all of it. */
    fun delete() {
        try {
            disk.delete(note)
            disk.delete(partial)
        } catch (error: IOException) {
            throw StorageException("$note cannot be removed: ${error.lastLine()}", error)
        }
        states.delete()
    }

    private companion object {
        const val MOST_OF_NOTE = 4096L
    }
}
