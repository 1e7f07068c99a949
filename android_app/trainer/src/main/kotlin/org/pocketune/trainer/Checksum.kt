package org.pocketune.trainer

import java.nio.ByteBuffer
import java.security.MessageDigest

private val MARK = "pocketune-sha256:".toByteArray()
private const val DIGITS = 64

/**
 * Finds any changed byte of a program file: the entry `pocketune.seal` in it holds the sha256 of the file with these 64
 * digits replaced by zeros. A runtime runs a file with flipped bits as if nothing were wrong.
 *
 * @param data from 0 to its limit.
 * @return that sha256, in hexadecimal digits.
 * @throws DamagedProgramException the file is not as it was built, or was not built by Pocketune.
 */
internal fun verifyChecksum(data: ByteBuffer): String {
    val start = data.indexOf(MARK)
    if (start < 0) {
        throw DamagedProgramException("it is no Pocketune program, or damaged: it has no checksum; a model that was exported has none, and does not train")
    }
    val digits = start + MARK.size
    val end = digits + DIGITS
    if (end > data.limit()) throw DamagedProgramException("it is damaged: its checksum is cut short")
    val whole = MessageDigest.getInstance("SHA-256")
    whole.update(data.between(0, digits))
    whole.update(ByteArray(DIGITS) { '0'.code.toByte() })
    whole.update(data.between(end, data.limit()))
    val digest = whole.digest().toHex()
    if (digest != data.between(digits, end).text(Charsets.ISO_8859_1)) {
        throw DamagedProgramException("it is damaged, its checksum does not match: copy or install it again")
    }
    return digest
}

private fun ByteBuffer.indexOf(mark: ByteArray): Int =
    (0..limit() - mark.size).firstOrNull { at -> mark.indices.all { get(at + it) == mark[it] } } ?: -1
