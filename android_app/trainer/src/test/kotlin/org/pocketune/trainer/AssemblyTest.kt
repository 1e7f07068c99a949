package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.concurrent.TimeUnit
import java.util.zip.DeflaterInputStream
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout

/** What a plain model is made of is bounded by what is stored; SameAsPythonTest has what is made. */
@Timeout(20, unit = TimeUnit.SECONDS)
class AssemblyTest {
    private val state = mapOf("w" to ByteBuffer.allocate(1 shl 16))
    private val shape = "[${state.getValue("w").limit() / 4}]"

    @Test
    fun `honest lists are taken`() {
        assertEquals(listOf(1 shl 16), pieces("$stored,${product(0)}", part(1)).map { it.limit() })
    }

    @Test
    fun `more than four times what is stored is refused`() {
        val products = (0 until 20_000).joinToString(",") { product(it) }
        refused("bytes or more, of at most ${4 * (1000 + (1 shl 16))}", "$stored,$products", part(20_000))
        refused("parts are", "$stored,${product(0)}", List(5) { part(1) }.joinToString(","))
    }

    @Test
    fun `what nobody reads is refused`() = refused("nobody reads", "$stored,${product(0)},${product(0)}", part(1))

    @Test
    fun `many axes are refused`() {
        val deep = "[" + "1,".repeat(100_000) + shape.drop(1)
        refused("axes", """{"source":"state","name":"w","shape":$deep},${product(0, deep)}""", part(1))
    }

    @Test
    fun `float32 numbers are given as float16 where that holds them`() {
        val (made) = pieces("", """{"source":"half","nbytes":16}""")
        val bits = List(8) { made.getShort(2 * it).toInt() and 0xffff }
        assertEquals(listOf(0, 0x8000, 0x3c00, 0xb555, 0x7bff, 1, 0x8400, 0x7c00), bits)
        numbers.putFloat(0, 0.1f)
        refused("no float16", "", """{"source":"half","nbytes":16}""")
    }

    /** Numbers of all kinds that float16 has: zeros, the smallest, the largest, without end. */
    private val numbers = ByteBuffer.allocate(32).order(ByteOrder.LITTLE_ENDIAN).also { buffer ->
        val all = floatArrayOf(0f, -0f, 1f, -0.33325195f, 65504f, 5.9604645e-8f, -6.1035156e-5f, Float.POSITIVE_INFINITY)
        for (number in all) buffer.putFloat(number)
    }

    private val stored = """{"source":"state","name":"w","shape":$shape}"""

    private fun product(of: Int, shape: String = this.shape) =
        """{"source":"multiply","shape":$shape,"operands":[$of,0]}"""

    private fun part(number: Int) = """{"source":"known","nbytes":${1 shl 16},"number":$number}"""

    private fun refused(message: String, known: String, parts: String) {
        val failure = assertFailsWith<DamagedProgramException> { pieces(known, parts) }
        assertTrue(message in failure.message.orEmpty(), failure.message)
    }

    private fun pieces(known: String, parts: String): List<ByteBuffer> {
        val entry = """{"parts":[$parts],"known":[$known]}""" + "\n"
        val packed = DeflaterInputStream(entry.byteInputStream()).readBytes()
        return Assembly.read(ByteBuffer.wrap(packed)).pieces(1000, { numbers }, state) { null }
    }
}
