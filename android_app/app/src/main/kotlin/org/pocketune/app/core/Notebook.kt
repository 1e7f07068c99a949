package org.pocketune.app.core

import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json

/**
 * A character that the user wrote.
 *
 * @property label the class it means.
 * @property strokes at least one, each of at least one point.
 * @property heldOut kept aside to judge by; never trained on.
 */
@Serializable
data class Drawing(val id: Long, val label: Int, val strokes: List<Stroke>, val heldOut: Boolean) {
    init {
        require(label >= 0 && strokes.isNotEmpty() && strokes.none { it.isEmpty() }) { "drawing $id has nothing in it" }
    }
}

/**
 * All that the user taught, and what came of it.
 *
 * @property symbols names of the user's own symbols, which take the program's spare classes in order.
 * @property learned the newest drawing that there was at the last training.
 * @property comparison what that training changed.
 * @property switched which model the user has taken instead of its since then.
 * @property generation of the saved state that these two are about; 0 when nothing was saved.
 */
@Serializable
data class Notes(
    val drawings: List<Drawing> = emptyList(),
    val symbols: List<String> = emptyList(),
    val learned: Long = 0,
    val comparison: Comparison? = null,
    val switched: Switch? = null,
    val generation: Long = 0,
) {
    val newest: Long get() = drawings.maxOfOrNull { it.id } ?: 0

    /** Whether something was taught since the last training. */
    val hasNew: Boolean get() = newest > learned

    /**
     * With one more drawing. Of each class the third is kept aside and then every [heldOutEvery]-th; where some were
     * deleted since, as many as keep that share.
     */
    fun plus(label: Int, strokes: List<Stroke>, heldOutEvery: Int): Notes {
        val ofClass = drawings.filter { it.label == label }
        val share = (ofClass.size + 1 + heldOutEvery - FIRST_HELD_OUT) / heldOutEvery
        val heldOut = ofClass.count { it.heldOut } < share
        return copy(drawings = drawings + Drawing(maxOf(newest, learned) + 1, label, strokes, heldOut))
    }

    /** Nothing of a deleted drawing is kept. */
    fun without(id: Long): Notes = copy(
        drawings = drawings.filterNot { it.id == id },
        comparison = comparison?.run { copy(changes = changes.filterNot { it.drawing.id == id }) },
    )

    fun relabelled(id: Long, label: Int): Notes =
        copy(drawings = drawings.map { if (it.id == id) it.copy(label = label) else it })

    companion object {
        /** Which drawing of a class is the first to be kept aside. */
        const val FIRST_HELD_OUT = 3
    }
}

/** Where [Notes] live: one JSON file, replaced as a whole, so that it is never half written. */
class Notebook(private val file: File) {
    /** The notes; empty ones when nothing was written yet. Throws [IOException] when the file is damaged. */
    fun read(): Notes {
        if (!file.exists()) return Notes()
        return try {
            json.decodeFromString<Notes>(file.readText())
        } catch (e: SerializationException) {
            throw IOException("${file.name} is damaged", e)
        } catch (e: IllegalArgumentException) {
            throw IOException("${file.name} is damaged", e)
        }
    }

    /** Throws [IOException] when the disk is full; the notes before then still stand. */
    fun write(notes: Notes) {
        val partial = File(file.path + ".partial")
        try {
            FileOutputStream(partial).use {
                it.write(json.encodeToString(Notes.serializer(), notes).toByteArray())
                it.fd.sync()
            }
            if (!partial.renameTo(file)) throw IOException("cannot replace ${file.name}")
        } finally {
            partial.delete()
        }
    }

    /** Puts a damaged file aside, for who may be able to save something of it, and starts anew. */
    fun putAside() {
        file.renameTo(File(file.path + ".damaged"))
    }

    private companion object {
        val json = Json { ignoreUnknownKeys = true }
    }
}
