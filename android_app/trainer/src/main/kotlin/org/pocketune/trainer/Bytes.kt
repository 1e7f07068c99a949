package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.charset.CharacterCodingException
import java.nio.charset.Charset
import java.security.MessageDigest

/** A view of the bytes from [start] to before [end], little-endian; nothing is copied. */
internal fun ByteBuffer.between(start: Int, end: Int): ByteBuffer {
    val view = duplicate()
    view.position(start)
    view.limit(end)
    return view.slice().order(ByteOrder.LITTLE_ENDIAN)
}

/** All bytes as text. Throws CharacterCodingException when they are none. */
@Throws(CharacterCodingException::class)
internal fun ByteBuffer.text(charset: Charset = Charsets.UTF_8): String =
    charset.newDecoder().decode(between(0, limit())).toString()

/** All bytes in an array of their own. */
internal fun ByteBuffer.copy(): ByteArray = ByteArray(limit()).also { between(0, limit()).get(it) }

internal fun ByteArray.toHex(): String = joinToString("") { "%02x".format(it) }

internal fun ByteBuffer.sha256(): ByteArray =
    MessageDigest.getInstance("SHA-256").also { it.update(between(0, limit())) }.digest()

/** A buffer as runtimes want it: direct, in native order. */
internal fun directBuffer(bytes: Int): ByteBuffer = ByteBuffer.allocateDirect(bytes).order(ByteOrder.nativeOrder())

/** Overwrites all of this buffer with all of [other], whatever their positions. */
internal fun ByteBuffer.fillFrom(other: ByteBuffer) {
    duplicate().apply { clear() }.put(other.duplicate().apply { clear() })
}

/** Sets all of this buffer to zero. */
internal fun ByteBuffer.zero() {
    val rest = duplicate().apply { clear() }
    while (rest.hasRemaining()) rest.put(ZEROS, 0, minOf(ZEROS.size, rest.remaining()))
}

private val ZEROS = ByteArray(1 shl 13)

/** Whether the little-endian float32 numbers are all finite. */
internal fun ByteBuffer.isFinite(): Boolean {
    val numbers = between(0, limit()).asFloatBuffer()
    return (0 until numbers.limit()).all { numbers.get(it).isFinite() }
}

/** The first line that says most: TFLite puts older messages before it. */
internal fun Throwable.lastLine(): String = message?.lines()?.lastOrNull { it.isNotBlank() }?.trim() ?: toString()
