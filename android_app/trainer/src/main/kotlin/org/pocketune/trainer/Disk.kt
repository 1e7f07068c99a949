package org.pocketune.trainer

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.file.Files
import java.nio.file.NoSuchFileException
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.StandardOpenOption.CREATE_NEW
import java.nio.file.StandardOpenOption.READ
import java.nio.file.StandardOpenOption.WRITE

/** The few things that a store does to a disk. All of them throw IOException. */
internal interface Disk {
    /** The bytes of a file, of a larger one the first [most]; null when there is none. */
    fun read(file: File, most: Long): ByteBuffer?

    /** A new file of these pieces, flushed to the disk. */
    fun write(file: File, pieces: Sequence<ByteBuffer>)

    /** In one instant, over whatever is at [to]. */
    fun rename(from: File, to: File)

    /** No error when there is no such file. */
    fun delete(file: File)

    /** Makes what happened in a directory outlive a power failure. */
    fun flush(directory: File)
}

/** Whatever is at [file] becomes these pieces, or stays when that fails or what gives them throws. */
internal fun Disk.replace(file: File, pieces: Sequence<ByteBuffer>) {
    val partial = File(file.path + ".partial")
    try {
        file.absoluteFile.parentFile?.mkdirs()
        delete(partial)
        write(partial, pieces)
        rename(partial, file)
    } catch (error: Throwable) {
        try {
            delete(partial)
        } catch (second: IOException) {
            error.addSuppressed(second)
        }
        throw error
    }
    flush(file.absoluteFile.parentFile)
}

/** The disk of the device. */
internal object RealDisk : Disk {
    override fun read(file: File, most: Long): ByteBuffer? {
        try {
            FileChannel.open(file.toPath(), READ).use { channel ->
                val data = ByteBuffer.allocate(minOf(channel.size(), most, Int.MAX_VALUE.toLong()).toInt())
                while (data.hasRemaining() && channel.read(data) >= 0) Unit
                return data.apply { flip() }
            }
        } catch (_: NoSuchFileException) {
            return null
        }
    }

    override fun write(file: File, pieces: Sequence<ByteBuffer>) {
        FileChannel.open(file.toPath(), WRITE, CREATE_NEW).use { channel ->
            for (piece in pieces) {
                val rest = piece.duplicate().apply { clear() }
                while (rest.hasRemaining()) channel.write(rest)
            }
            channel.force(true)
        }
    }

    override fun rename(from: File, to: File) {
        Files.move(from.toPath(), to.toPath(), ATOMIC_MOVE)
    }

    override fun delete(file: File) {
        Files.deleteIfExists(file.toPath())
    }

    override fun flush(directory: File) {
        try {
            FileChannel.open(directory.toPath(), READ).use { it.force(true) }
        } catch (_: IOException) {
            // Some file systems (FAT on a card) do not know how to flush a directory; the files themselves are flushed.
        }
    }
}
