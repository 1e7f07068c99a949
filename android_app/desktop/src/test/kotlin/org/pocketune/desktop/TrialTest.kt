package org.pocketune.desktop

import java.io.ByteArrayOutputStream
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.CRC32
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import kotlin.test.assertContains
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import org.pocketune.trainer.DamagedProgramException
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.Program
import org.pocketune.trainer.Values

/** What `android_app/desktop/run PROGRAM.tflite` reads and makes. */
class TrialTest {
    @TempDir lateinit var folder: File

    private val programs = File(System.getProperty("programs"))

    @Test
    fun `rows of NumPy's arrays are those that were saved`() {
        val x = array("<f4", "(2, 3)", 24) { buffer -> repeat(6) { buffer.putFloat(it / 2f) } }
        val y = array("<i8", "(2,)", 16) { buffer -> buffer.putLong(7).putLong(-1) }
        val picture = array("|u1", "(2, 2)", 4) { buffer -> buffer.put(byteArrayOf(0, -1, 1, 2)) }
        val arrays = readNpz(npz("x" to x, "y" to y, "picture" to picture))
        assertEquals(listOf(2, 3), arrays.getValue("x").shape)
        assertContentEquals(floatArrayOf(1.5f, 2f, 2.5f), (arrays.getValue("x").row(1, Dtype.FLOAT32) as Values.Floats).array)
        assertContentEquals(intArrayOf(-1), (arrays.getValue("y").row(1, Dtype.INT32) as Values.Ints).array)
        assertContentEquals(floatArrayOf(0f, 255f), (arrays.getValue("picture").row(0, Dtype.FLOAT32) as Values.Floats).array)
        assertFailsWith<UsageException> { arrays.getValue("x").row(0, Dtype.INT32) }
    }

    @Test
    fun `what does not fit is told in a sentence`() {
        val manifest = Program.open(File(programs, "docs.tflite")).manifest
        val x = array("<f4", "(2, 8)", 64) {}
        assertContains(assertFailsWith<UsageException> { samplesOf(npz("x" to x), manifest) }.message!!, "no array 'y'")
        val y = array("<i4", "(3,)", 12) {}
        assertContains(assertFailsWith<UsageException> { samplesOf(npz("x" to x, "y" to y), manifest) }.message!!, "rows differ")
        File(folder, "text.npz").writeText("no zip")
        assertFailsWith<UsageException> { readNpz(File(folder, "text.npz")) }
    }

    @ParameterizedTest
    @ValueSource(strings = ["docs", "mlp-variables", "cnn-stateless", "two-variables", "mixing", "adapted", "mlp-lean"])
    fun `made-up samples train any program`(name: String) {
        loadAndroid()
        tryOut(File(programs, "$name.tflite"), listOf("--epochs", "1"))
    }

    @Test
    fun `a head is trained by its name, and without one it is said which there are`() {
        loadAndroid()
        val file = File(programs, "heads.tflite")
        tryOut(file, listOf("--epochs", "1", "--head", "frogs"))
        val refused = assertFailsWith<DamagedProgramException> { tryOut(file, listOf("--epochs", "1")) }
        assertContains(refused.message!!, "several heads: birds, frogs")
        assertContains(assertFailsWith<UsageException> { tryOut(file, listOf("--head")) }.message!!, "takes the name of a head")
    }

    /** As `np.savez` writes it. */
    private fun npz(vararg arrays: Pair<String, ByteArray>): File {
        val file = File(folder, "data.npz")
        ZipOutputStream(file.outputStream()).use { zip ->
            zip.setMethod(ZipOutputStream.STORED)
            for ((name, bytes) in arrays) {
                val entry = ZipEntry("$name.npy").apply {
                    size = bytes.size.toLong()
                    crc = CRC32().apply { update(bytes) }.value
                }
                zip.putNextEntry(entry)
                zip.write(bytes)
            }
        }
        return file
    }

    private fun array(type: String, shape: String, size: Int, fill: (ByteBuffer) -> Unit): ByteArray {
        val header = "{'descr': '$type', 'fortran_order': False, 'shape': $shape, }".padEnd(117) + "\n"
        val data = ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN).also(fill).array()
        val made = ByteArrayOutputStream()
        made.write(byteArrayOf(0x93.toByte()) + "NUMPY".toByteArray() + byteArrayOf(1, 0, header.length.toByte(), 0))
        made.write(header.toByteArray() + data)
        return made.toByteArray()
    }
}
