package org.pocketune.federated

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.test.assertContains
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource

/** `.npy` in and out, and files that are none. */
class NpyTest {
    @Test
    fun `what is written is read`() {
        for (shape in listOf(listOf(), listOf(3), listOf(2, 3), listOf(0, 4))) {
            val tensor = Tensor(shape, FloatArray(shape.fold(1) { a, b -> a * b }) { it - 0.5f })
            val file = Npy.write(tensor)
            assertEquals(0, (file.size - 4 * tensor.numbers.size) % 64)
            assertEquals(shape, Npy.read("w", file).shape)
            assertContentEquals(tensor.numbers, Npy.read("w", file).numbers)
        }
    }

    @Test
    fun `float64 is rounded, and what no float32 holds is none`() {
        val data = ByteBuffer.allocate(24).order(ByteOrder.LITTLE_ENDIAN).putDouble(0.1).putDouble(1e300).putDouble(Double.NaN)
        val read = Npy.read("w", file("'descr': '<f8', 'fortran_order': False, 'shape': (3,)", data.array())).numbers
        assertEquals(0.1f, read[0])
        assertTrue(read[1].isNaN() && read[2].isNaN())
    }

    @ParameterizedTest
    @ValueSource(
        strings = [
            "'descr': '|O', 'fortran_order': False, 'shape': (2,)", "'descr': '>f4', 'fortran_order': False, 'shape': (2,)",
            "'descr': '<i4', 'fortran_order': False, 'shape': (2,)", "'descr': '<f4', 'fortran_order': True, 'shape': (2,)",
            "'descr': '<f4', 'fortran_order': False, 'shape': (3,)", "'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,)",
            "'descr': '<f4', 'fortran_order': False, 'shape': (65536, 65536, 65536, 65536)", "'shape': (2,)", "'shape': (", "",
        ],
    )
    fun `other files are refused`(header: String) {
        assertFailsWith<RefusedRoundException> { Npy.read("w", file(header, ByteArray(8))) }
    }

    @Test
    fun `no file at all is refused`() {
        val good = Npy.write(Tensor(listOf(2), FloatArray(2)))
        for (size in good.indices) assertFailsWith<RefusedRoundException> { Npy.read("w", good.copyOf(size)) }
        assertContains(assertFailsWith<RefusedRoundException> { Npy.read("w", ByteArray(200)) }.message!!, "w came as no array")
    }

    /** A file with another padding than NumPy's. */
    private fun file(header: String, data: ByteArray): ByteArray {
        val text = "{$header}\n".toByteArray()
        val head = byteArrayOf(0x93.toByte()) + "NUMPY".toByteArray() + byteArrayOf(1, 0, text.size.toByte(), 0)
        return head + text + data
    }
}
