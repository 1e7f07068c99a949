package org.pocketune.trainer

import java.nio.ByteBuffer
import java.util.Random
import java.util.concurrent.TimeUnit
import java.util.zip.Deflater
import java.util.zip.DeflaterInputStream
import java.util.zip.InflaterInputStream
import kotlin.test.assertContentEquals
import kotlin.test.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout

/** Of a hundred damaged files, how many are tried: all with `scripts/test --slow`. */
private val PERCENT = Integer.getInteger("fuzzed", 10)

/** Hostile files: whatever comes, there is an answer or a typed error, soon and in 256 MB (see the pom). */
@Timeout(120, unit = TimeUnit.SECONDS)
class FuzzTest {
    private val random = Random(1)
    private val program = Fixture.file("mlp-variables.tflite").readBytes()
    private val state = Fixture.file("cnn.state").readBytes()
    private val spec = StateSpec(Fixture.program("cnn-variables"))

    @Test
    fun `damaged flatbuffers`() = fuzz(40_000) {
        ModelMetadata(ByteBuffer.wrap(mutated(program, structural = 4))).entries("pocketune.initial/")
    }

    @Test
    fun `damaged lists of heads`() {
        val names = "[\"birds\", \"frogs\"]".toByteArray()
        fuzz(10_000) { Heads.metadata(mapOf("pocketune.heads" to ByteBuffer.wrap(mutatedText(names))), "frogs") }
    }

    @Test
    fun `damaged manifests`() {
        for (bytes in listOf(program, Fixture.file("mlp-by-2-stateless.tflite").readBytes())) {
            val entries = ModelMetadata(ByteBuffer.wrap(bytes)).entries("pocketune.initial/")
            val text = entries.getValue("pocketune.manifest").copy()
            fuzz(15_000) { readManifest(ByteBuffer.wrap(mutatedText(text))) }
        }
    }

    @Test
    fun `damaged assemblies`() {
        // Its plain model has a filter that is computed.
        val scaled = Fixture.file("cnn-variables.tflite").readBytes()
        val entry = ModelMetadata(ByteBuffer.wrap(scaled)).entries("pocketune.inference").getValue("pocketune.inference")
        val text = String(InflaterInputStream(entry.copy().inputStream()).readBytes(), Charsets.ISO_8859_1)
        val state = Fixture.program("cnn-variables").initialState().associate { it.name to it.bytes }
        fuzz(5_000) { Assembly.read(ByteBuffer.wrap(mutated(entry.copy(), structural = 4))) }
        fuzz(5_000) {
            val (parts, own) = text.split("\n", limit = 2)
            val changed = mutatedText(parts.toByteArray(Charsets.ISO_8859_1)) + "\n$own".toByteArray(Charsets.ISO_8859_1)
            val packed = DeflaterInputStream(changed.inputStream(), Deflater(1)).readBytes()
            val buffer = { number: Long -> if (number < 9) entry else ByteBuffer.allocate(0) }
            Assembly.read(ByteBuffer.wrap(packed)).pieces(scaled.size, buffer, state) { state[it] }
        }
    }

    @Test
    fun `damaged state files whose digest is right`() = fuzz(30_000) {
        val header = String(mutatedText(StateTest.header(state).toByteArray()), Charsets.ISO_8859_1)
        compare(StateFile.unpack(StateTest.withHeader(state, header)), spec)
    }

    @Test
    fun `damaged state files`() = fuzz(20_000) {
        val damaged = mutated(state, structural = 64)
        val found = StateFile.unpack(ByteBuffer.wrap(damaged))
        assertContentEquals(state, damaged, "a state with other bytes was taken")
        found
    }

    /** Anything but a typed error fails the test. */
    private fun fuzz(count: Int, open: () -> Any) {
        var accepted = 0
        val tried = count * PERCENT / 100
        repeat(tried) {
            try {
                open()
                accepted++
            } catch (_: PocketuneException) {
                // What is meant to happen.
            }
        }
        assertTrue(accepted < tried)
    }

    /** Some bytes overwritten, half of them among the first, where a file's structure is; sometimes cut. */
    private fun mutated(bytes: ByteArray, structural: Int): ByteArray {
        val bad = if (random.nextInt(8) == 0) bytes.copyOf(random.nextInt(bytes.size)) else bytes.copyOf()
        if (bad.isEmpty()) return bad
        repeat(1 + random.nextInt(8)) {
            val region = if (random.nextBoolean()) minOf(bad.size, structural * 16) else bad.size
            bad[random.nextInt(region)] = listOf(0, 1, 0x7f, 0x80, 0xff, random.nextInt(256)).random(random).toByte()
        }
        return bad
    }

    /** Bytes replaced, pieces doubled, cut or swapped for what JSON is made of. */
    private fun mutatedText(bytes: ByteArray): ByteArray {
        var text = String(bytes, Charsets.ISO_8859_1)
        repeat(1 + random.nextInt(3)) {
            val at = random.nextInt(text.length + 1)
            val end = minOf(text.length, at + random.nextInt(12))
            text = when (random.nextInt(4)) {
                0 -> text.removeRange(at, end)
                1 -> text.replaceRange(at, end, TOKENS.random(random))
                2 -> text.replaceRange(at, at, text.substring(at, end))
                else -> text.replaceRange(at, minOf(text.length, at + 1), random.nextInt(256).toChar().toString())
            }
        }
        return text.toByteArray(Charsets.ISO_8859_1)
    }

    private fun <T> List<T>.random(random: Random): T = this[random.nextInt(size)]

    private companion object {
        val TOKENS = listOf(
            "null", "true", "-1", "0", "1e999", "99999999999999999999", "2147483647", "NaN", "3.5",
            "[]", "{}", "[[[[", "\"", "\\u0000", ",", ":", "]", "}",
        )
    }
}
