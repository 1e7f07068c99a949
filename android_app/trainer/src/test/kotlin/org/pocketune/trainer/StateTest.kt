package org.pocketune.trainer

import java.io.File
import java.io.RandomAccessFile
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.MessageDigest
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** State files: docs/state-file.md, rule by rule. */
class StateTest {
    @TempDir lateinit var folder: File

    private lateinit var file: File
    private lateinit var states: TwoGenerations
    private val previous get() = File(file.path + ".previous")

    @BeforeEach
    fun open() {
        file = File(folder, "personal.state")
        states = TwoGenerations(file, Fixture.states, RealDisk, 1L shl 20)
    }

    @Test
    fun `what the host wrote is read, and written again to the byte`() {
        for (model in listOf("mlp", "cnn", "interchange-labelled")) {
            val bytes = Fixture.file("$model.state").readBytes()
            val state = StateFile.unpack(ByteBuffer.wrap(bytes))
            assertEquals(1, state.generation)
            assertContentEquals(bytes, StateFile.pack(state).array())
        }
    }

    @Test
    fun `names of any kind are escaped as the host does`() {
        val name = "a\"\\/\n\t\u0001\u007fé€"
        val tensor = StoredTensor(name, Dtype.FLOAT32, listOf(1), ByteBuffer.allocate(4))
        val kind = StateTensor(name, listOf(1), Dtype.FLOAT32, slot = false)
        val packed = StateFile.pack(State(StateSpec("ab".repeat(32), listOf(kind)), 3, listOf(tensor)))
        assertTrue("\"name\":\"a\\\"\\\\/\\n\\t\\u0001\u007fé€\"" in header(packed.array()))
        assertEquals(name, StateFile.unpack(packed).tensors.single().name)
    }

    @Test
    fun `two generations are kept`() {
        assertEquals(listOf(1L, 2L, 3L), (1..3).map { save(it) })
        assertEquals(3f, Fixture.valueOf(states.load().state.tensors))
        assertEquals(2f, Fixture.valueOf(assertNotNull(states.previous()).tensors))
        assertEquals(setOf("personal.state", "personal.state.previous"), folder.list()?.toSet())
    }

    @Test
    fun `a damaged state falls back to the older one, which is not lost by saving`() {
        (1..2).forEach(::save)
        for (damage in damages(file.readBytes())) {
            file.writeBytes(damage)
            val loaded = states.load()
            assertEquals(1L, loaded.state.generation)
            assertNotNull(loaded.lost)
        }
        assertEquals(2L, save(5))
        assertEquals(1L, assertNotNull(states.previous()).generation)
        assertNull(states.load().lost)
    }

    @Test
    fun `a missing newest falls back`() {
        (1..2).forEach(::save)
        file.delete()
        assertEquals(1L, states.load().state.generation)
    }

    @Test
    fun `nothing, and nothing good, are told apart`() {
        assertFailsWith<NoStateException> { states.load() }
        save(1)
        file.writeBytes(file.readBytes().also { it[200] = 9 })
        assertFailsWith<DamagedStateException> { states.load() }
        // It was one of ours, so it may be replaced; a stranger's file may not.
        assertEquals(1L, save(1))
        previous.delete()
        file.writeText("my diary")
        assertFailsWith<DamagedStateException> { save(2) }
        assertEquals("my diary", file.readText())
    }

    @Test
    fun `another program's state is refused and not overwritten`() {
        file.writeBytes(Fixture.file("cnn.state").readBytes())
        assertFailsWith<ForeignStateException> { states.load() }
        assertFailsWith<ForeignStateException> { save(1) }
        assertContentEquals(Fixture.file("cnn.state").readBytes(), file.readBytes())
    }

    @Test
    fun `what cannot be used is set aside and not lost`() {
        states.setAside()
        (1..2).forEach(::save)
        val older = previous.readBytes()
        val foreign = Fixture.file("cnn.state").readBytes()
        file.writeBytes(foreign)
        states.setAside()
        assertFailsWith<NoStateException> { states.load() }
        assertContentEquals(foreign, File(file.path + ".unusable").readBytes())
        assertContentEquals(older, File(previous.path + ".unusable").readBytes())
        assertEquals(1L, save(7))
        assertEquals(7f, Fixture.valueOf(states.load().state.tensors))
    }

    @Test
    fun `other versions of the format are refused and not overwritten`() {
        save(1)
        for (version in listOf(0, 3)) {
            val bytes = ByteBuffer.wrap(file.readBytes())
            bytes.put(8, version.toByte())
            file.writeBytes(resealed(bytes).array())
            assertFailsWith<StateVersionException> { states.load() }
            assertFailsWith<StateVersionException> { save(2) }
        }
    }

    @Test
    fun `every flipped bit and every cut is found`() {
        save(1)
        val bytes = file.readBytes()
        for (i in bytes.indices) {
            val bad = bytes.copyOf().also { it[i] = (it[i].toInt() xor (1 shl i % 8)).toByte() }
            assertFailsWith<StateException>("byte $i") { StateFile.unpack(ByteBuffer.wrap(bad)) }
        }
        for (size in bytes.indices step 7) {
            assertFailsWith<StateException> { StateFile.unpack(ByteBuffer.wrap(bytes.copyOf(size))) }
        }
        assertFailsWith<StateException> { StateFile.unpack(ByteBuffer.wrap(bytes + 0)) }
    }

    /** The tests have 256 MB (see the pom). */
    @Test
    fun `files that are far too large are never read whole`() {
        (1..2).forEach(::save)
        for (damage in listOf(file.readBytes(), ByteArray(0))) {
            file.writeBytes(damage)
            listOf(file, previous).forEach { grown -> RandomAccessFile(grown, "rw").use { it.setLength(3L shl 30) } }
            assertFailsWith<DamagedStateException> { states.load() }
        }
        file.writeBytes(Fixture.file("cnn.state").readBytes())
        RandomAccessFile(file, "rw").use { it.setLength(3L shl 30) }
        assertFailsWith<ForeignStateException> { states.load() }
    }

    @Test
    fun `headers that lie are found behind a good digest`() {
        save(1)
        val text = header(file.readBytes())
        val lies = listOf(
            text.replace("\"generation\":1,", "\"generation\":0,"),
            text.replace("\"generation\":1,", "\"generation\":9007199254740992,"),
            text.replace("\"generation\":1,", "\"generation\":\"1\","),
            text.replace("\"generation\":1,", "\"generation\":1,\"more\":2,"),
            text.replace("\"generation\":1,", ""),
            text.replaceFirst("\"offset\":0", "\"offset\":64"),
            text.replaceFirst("\"offset\":0", "\"offset\":-64"),
            text.replaceFirst("\"shape\":[", "\"shape\":[1073741824,1073741824,1073741824,"),
            text.replaceFirst("\"shape\":[", "\"shape\":[-1,"),
            text.replaceFirst("\"view\":[", "\"view\":[[\"slice\",0,0,1],"),
            text.replaceFirst("\"view\":[", "\"view\":[[\"flip\",0],"),
            text.replaceFirst("\"forward\":\"", "\"forward\":\"x"),
            text.replaceFirst("\"slot\":false", "\"slot\":0"),
            text.replaceFirst("float32", "float64"),
            "[".repeat(100_000), "null", "{}", "",
        )
        for (lie in lies) {
            assertTrue(lie != text)
            assertFailsWith<DamagedStateException>(lie.take(200)) { StateFile.unpack(withHeader(file.readBytes(), lie)) }
        }
    }

    @Test
    fun `NaN is never written and a full disk changes nothing`() {
        val disk = FailingDisk()
        val states = TwoGenerations(file, Fixture.states, disk, 1L shl 20)
        states.save(Fixture.tensors(1f))
        val before = file.readBytes()
        assertFailsWith<DivergedException> { states.save(Fixture.tensors(Float.NaN)) }
        disk.isFull = true
        assertFailsWith<StorageException> { states.save(Fixture.tensors(2f)) }
        disk.isFull = false
        assertFailsWith<StorageException> { TwoGenerations(file, Fixture.states, disk, 20_000).save(Fixture.tensors(2f)) }
        disk.stuck = "personal.state.partial"
        assertFailsWith<StorageException> { states.save(Fixture.tensors(2f)) }
        assertContentEquals(before, file.readBytes())
        assertEquals(listOf("personal.state"), folder.list()?.toList())
    }

    private fun save(value: Int): Long = states.save(Fixture.tensors(value.toFloat()))

    private fun damages(bytes: ByteArray) = listOf(
        ByteArray(0), bytes.copyOf(30), bytes.copyOf(bytes.size / 2), bytes + 1,
        bytes.copyOf().also { it[20] = 1 }, bytes.copyOf().also { it[it.lastIndex] = 77 },
    )

    companion object {
        internal fun header(state: ByteArray): String = String(state, 48, lengthOf(state))

        internal fun programOf(state: ByteArray): String = Regex("[0-9a-f]{64}").find(header(state))!!.value

        /** The state with another header and a digest that fits it. */
        internal fun withHeader(state: ByteArray, text: String): ByteBuffer {
            val header = text.toByteArray()
            val data = state.drop((48 + lengthOf(state) + 63) / 64 * 64).toByteArray()
            val start = (48 + header.size + 63) / 64 * 64
            val bytes = ByteBuffer.allocate(start + data.size).order(ByteOrder.LITTLE_ENDIAN)
            bytes.put(state, 0, 12).putInt(header.size)
            bytes.position(48)
            bytes.put(header).position(start)
            bytes.put(data)
            return resealed(bytes)
        }

        internal fun resealed(bytes: ByteBuffer): ByteBuffer {
            val length = lengthOf(bytes.array())
            val digest = MessageDigest.getInstance("SHA-256")
            digest.update(bytes.array(), 0, 16)
            digest.update(bytes.array(), 48, length)
            digest.digest().copyInto(bytes.array(), 16)
            return bytes.apply { clear() }
        }

        private fun lengthOf(state: ByteArray) =
            ByteBuffer.wrap(state).order(ByteOrder.LITTLE_ENDIAN).getInt(12)
    }
}
