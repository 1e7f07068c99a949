package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** By what a memory knows whether a label is still of the class whose rows it keeps; the twin of the host's `class_tags.py`. */
internal object ClassTags {
    const val BYTES = Long.SIZE_BYTES

    /** Of a class whose name is not known. */
    const val UNKNOWN = 0L

    /** The first bytes of the sha256 of a name in UTF-8, as a little-endian number; an empty name is of no class. */
    fun of(name: String): Long = if (name.isEmpty()) UNKNOWN
    else ByteBuffer.wrap(ByteBuffer.wrap(name.toByteArray()).sha256()).order(ByteOrder.LITTLE_ENDIAN).getLong(0)
}
