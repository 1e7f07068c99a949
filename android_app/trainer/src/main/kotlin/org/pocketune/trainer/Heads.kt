package org.pocketune.trainer

import java.nio.ByteBuffer
import kotlinx.serialization.SerializationException
import kotlinx.serialization.builtins.ListSerializer
import kotlinx.serialization.builtins.serializer

/** Files of several heads on one backbone (converter/program/heads.py). */
internal object Heads {
    /** The metadata entry with the names of the heads, in order. */
    private const val ENTRY = "pocketune.heads"

    /** What a head may be called. */
    private val NAME = Regex("[A-Za-z0-9_.-]{1,60}")

    /** So many names are told. */
    private const val MOST = 20

    /** What a [signature] of a head is called in the file: `features` is of all of them. */
    fun stored(signature: String, head: String?): String =
        if (head == null || signature == FEATURES) signature else "$head/$signature"

    /**
     * The metadata of a program, or of one head of a file of several as though it were alone: `pocketune.initial/birds/w`
     * is `pocketune.initial/w` there.
     *
     * @throws DamagedProgramException the file has no such head, or several and none is asked for.
     */
    fun metadata(metadata: Map<String, ByteBuffer>, head: String?): Map<String, ByteBuffer> {
        val entry = metadata[ENTRY]
        if (entry == null) {
            if (head == null) return metadata
            throw DamagedProgramException("it has one head, and no head '$head': leave the head out")
        }
        val names = names(entry)
        val told = names.joinToString(limit = MOST)
        if (head == null) {
            throw DamagedProgramException("it holds several heads: $told. Say which: Program.open(..., head = \"${names[0]}\")")
        }
        if (head !in names) throw DamagedProgramException("it has no head '$head': it has $told")
        val own = LinkedHashMap<String, ByteBuffer>()
        for ((name, data) in metadata) {
            val parts = name.split('/')
            if (parts.size == 1) {
                if (name != ENTRY) own[name] = data
            } else if (parts[1] == head) {
                own[(listOf(parts[0]) + parts.drop(2)).joinToString("/")] = data
            }
        }
        return own
    }

    private fun names(entry: ByteBuffer): List<String> {
        val names =
            try {
                StrictJson.decode(ListSerializer(String.serializer()), entry)
            } catch (_: SerializationException) {
                emptyList()
            }
        if (names.isEmpty() || !names.all(NAME::matches)) {
            throw DamagedProgramException("its list of heads is damaged: build it again")
        }
        return names
    }
}
