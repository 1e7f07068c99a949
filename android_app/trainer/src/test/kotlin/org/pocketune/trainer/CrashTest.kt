package org.pocketune.trainer

import java.io.File
import java.io.FileOutputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Random
import java.util.concurrent.Callable
import java.util.concurrent.Executors
import java.util.concurrent.TimeUnit
import java.util.jar.JarOutputStream
import java.util.zip.ZipEntry
import kotlin.test.assertEquals
import kotlin.test.assertNotNull
import kotlin.test.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Of two stores, so often at every point: 210 in the slow run. */
private val ROUNDS = Integer.getInteger("rounds", 4 * POINTS)
private const val KILLED = 137

/** Before and after a delete, two renames and a flush; five in the write. */
private const val POINTS = 13

/** The process ends at a point of a save; [at] counts the points, [cut] says after how much of the file. */
private class HaltingDisk(private val at: Int, private val cut: Double) : Disk {
    private var point = 0

    override fun read(file: File, most: Long) = RealDisk.read(file, most)

    override fun write(file: File, pieces: Sequence<ByteBuffer>) {
        reach()
        FileOutputStream(file).use { stream ->
            reach()
            val bytes = pieces.single().copy()
            val part = (bytes.size * cut).toInt()
            stream.write(bytes, 0, part)
            reach()
            stream.write(bytes, part, bytes.size - part)
            reach()
            stream.channel.force(true)
            reach()
        }
    }

    override fun rename(from: File, to: File) = between { RealDisk.rename(from, to) }

    override fun delete(file: File) = between { RealDisk.delete(file) }

    override fun flush(directory: File) = between { RealDisk.flush(directory) }

    private fun between(work: () -> Unit) {
        reach()
        work()
        reach()
    }

    private fun reach() {
        if (point++ == at) Runtime.getRuntime().halt(KILLED)
    }
}

/** In a JVM of its own: saves the next state, filled with its generation, and is killed meanwhile. */
internal object CrashingProcess {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val (file, at, cut) = arguments
        val disk = HaltingDisk(at.toInt(), cut.toDouble())
        val states = TwoGenerations(File(file), SPEC, disk, 1L shl 20)
        states.save(tensors(states.load().state.generation + 1))
    }

    val SPEC = StateSpec(
        "0".repeat(64),
        listOf("a", "b").map { StateTensor(it, listOf(5000), Dtype.FLOAT32, slot = false) },
    )

    fun tensors(generation: Long) = listOf("a", "b").map {
        val bytes = ByteBuffer.allocate(5000 * 4).order(ByteOrder.LITTLE_ENDIAN)
        while (bytes.hasRemaining()) bytes.putFloat(generation.toFloat())
        StoredTensor(it, Dtype.FLOAT32, listOf(5000), bytes.apply { clear() })
    }
}

/** Killed at every point of a save, a store never loses the last state that was saved, and never holds half of one. */
class CrashTest {
    @TempDir lateinit var folder: File

    @Test
    fun `killed again and again`() {
        val pool = Executors.newFixedThreadPool(2)
        // Two stores, each killed again and again: what one crash leaves is where the next begins.
        val killed = pool.invokeAll(List(2) { Callable { chain(File(folder, "store$it"), it) } }).sumOf { it.get() }
        pool.shutdown()
        assertTrue(killed >= 0.9 * ROUNDS, "$killed of $ROUNDS rounds were killed")
    }

    private fun chain(directory: File, number: Int): Int {
        val file = File(directory, "personal.state")
        val states = TwoGenerations(file, CrashingProcess.SPEC, RealDisk, 1L shl 20)
        states.save(CrashingProcess.tensors(1))
        val random = Random(number.toLong())
        var last = 1L
        var killed = 0
        repeat(ROUNDS / 2) { round ->
            val status = run(file, round % (POINTS), random.nextDouble())
            assertTrue(status == 0 || status == KILLED, "the process ended with $status")
            if (status == KILLED) killed++
            val found = assertNotNull(states.load().state)
            // The old one or the new one; the new one for certain when the save had returned.
            val oldest = if (status == 0) last + 1 else last
            assertTrue(found.generation in oldest..last + 1, "${found.generation} after $last")
            for ((expected, tensor) in CrashingProcess.tensors(found.generation).zip(found.tensors)) {
                assertEquals(expected.bytes, tensor.bytes)
            }
            last = found.generation
        }
        return killed
    }

    private fun run(file: File, at: Int, cut: Double): Int = java("-XX:SharedArchiveFile=$archive", file, at, cut)

    /** The classes of the process that is killed, to be mapped by each of them: loading them took half of its time. */
    private val archive: File by lazy {
        val file = File(folder, "once/personal.state")
        TwoGenerations(file, CrashingProcess.SPEC, RealDisk, 1L shl 20).save(CrashingProcess.tensors(1))
        File(folder, "classes.jsa").also { assertEquals(0, java("-XX:ArchiveClassesAtExit=$it", file, at = POINTS, cut = 1.0)) }
    }

    /** The class path in jars alone: only those are archived. */
    private val classpath: String by lazy {
        val (folders, jars) = System.getProperty("java.class.path").split(File.pathSeparator).map(::File).partition { it.isDirectory }
        val ours = File(folder, "ours.jar")
        JarOutputStream(ours.outputStream()).use { jar ->
            for (root in folders) for (file in root.walk().filter { it.extension == "class" }) {
                jar.putNextEntry(ZipEntry(file.relativeTo(root).path))
                file.inputStream().use { it.copyTo(jar) }
            }
        }
        (listOf(ours) + jars).joinToString(File.pathSeparator)
    }

    private fun java(option: String, file: File, at: Int, cut: Double): Int {
        val java = "${System.getProperty("java.home")}/bin/java"
        val options = listOf("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m", option)
        val command = listOf(java) + options + listOf("-cp", classpath) +
            listOf(CrashingProcess::class.java.name, file.path, at.toString(), cut.toString())
        val process = ProcessBuilder(command).redirectErrorStream(true).redirectOutput(File(folder, "log")).start()
        assertTrue(process.waitFor(60, TimeUnit.SECONDS))
        return process.exitValue()
    }
}
