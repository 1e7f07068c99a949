package org.pocketune.trainer

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.MessageDigest
import java.util.Random
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertTrue
import org.junit.jupiter.api.Test

/** Programs: nothing in a file is believed before it is checked. */
class ProgramTest {
    private val bytes = Fixture.file("mlp-variables.tflite").readBytes()
    private val manifest = manifestOf("mlp-variables")
    private val several = Fixture.file("heads.tflite").readBytes()

    @Test
    fun `programs of the compiler open`() {
        for (name in listOf("mlp-variables", "mlp-stateless", "cnn-by-4-variables", "cnn-by-4-stateless")) {
            val program = Program.open(Fixture.file("$name.tflite"))
            assertEquals(if ("by-4" in name) 4 else 8, program.manifest.microBatch)
            assertEquals(name.endsWith("stateless"), program.manifest.state == StateKind.STATELESS)
            assertEquals(8 to 4, program.manifest.batch to program.manifest.classes)
            assertEquals(program.manifest.stateTensors.size, program.initialState().size)
            assertTrue(program.data.isDirect && program.data.order() == ByteOrder.nativeOrder())
        }
        assertEquals(Fixture.hash, Program.open(bytes).manifest.graphHash)
    }

    @Test
    fun `every flipped bit and every cut is found`() {
        val random = Random(0)
        repeat(2000) {
            val bad = bytes.copyOf()
            val at = random.nextInt(bad.size)
            bad[at] = (bad[at].toInt() xor (1 shl random.nextInt(8))).toByte()
            assertFailsWith<DamagedProgramException>("byte $at") { Program.open(bad) }
        }
        for (size in bytes.indices step 997) assertFailsWith<DamagedProgramException> { Program.open(bytes.copyOf(size)) }
        assertFailsWith<DamagedProgramException> { Program.open(bytes + 0) }
        assertFailsWith<DamagedProgramException> { Program.open(File("/nowhere.tflite")) }
    }

    @Test
    fun `a changed program with a good checksum is checked all the same`() {
        val renamed = String(bytes, Charsets.ISO_8859_1).replace("pocketune.manifest", "pocketune.manifesT")
        val failure = assertFailsWith<DamagedProgramException> { Program.open(resealed(renamed)) }
        assertTrue("no manifest" in failure.message.orEmpty())
        val lacking = String(bytes, Charsets.ISO_8859_1).replace("pocketune.initial/a/b", "pocketune.initial/a/X")
        assertFailsWith<DamagedProgramException> { Program.open(resealed(lacking)) }
    }

    @Test
    fun `one head of a file of several is a program, with what is of the other left out`() {
        val (birds, frogs) = listOf("birds", "frogs").map { Program.open(several, it) }
        assertEquals(listOf(4, 6), listOf(birds.manifest.classes, frogs.manifest.classes))
        assertEquals(listOf("birds/infer_features", "features"), listOf(birds.stored("infer_features"), frogs.stored("features")))
        assertEquals(birds.manifest.graphHash, Program.open(Fixture.file("heads.tflite"), head = "birds").manifest.graphHash)
        assertEquals(birds.manifest.graphHash, Program.open(several.inputStream(), head = "birds").manifest.graphHash)
        val alone = Program.open(bytes)
        assertEquals(listOf(null, "train"), listOf(alone.head, alone.stored("train")))
    }

    @Test
    fun `a file of several heads is refused without one, and a head that is not there, by what there is`() {
        fun assertRefused(said: String, open: () -> Program) {
            val refused = assertFailsWith<DamagedProgramException>(block = { open() })
            assertTrue(said in refused.message.orEmpty(), "$refused")
        }
        assertRefused("it holds several heads: birds, frogs. Say which: Program.open(..., head = \"birds\")") { Program.open(several) }
        assertRefused("it has no head 'frog': it has birds, frogs") { Program.open(several, "frog") }
        assertRefused("it has one head, and no head 'birds': leave the head out") { Program.open(bytes, "birds") }
        val (text, list) = String(several, Charsets.ISO_8859_1) to "[\"birds\", \"frogs\"]"
        for ((names, said) in listOf(
            "[\"birds\",\"frog/\"]" to "list of heads is damaged",
            "[\"birds\", frogs\"]" to "list of heads is damaged",
            "[]" to "list of heads is damaged",
            "[\"birds\", \"foxes\"]" to "no head 'frogs': it has birds, foxes",
        )) {
            assertRefused(said) { Program.open(resealed(text.replace(list, names.padEnd(list.length))), "frogs") }
        }
        val lacking = resealed(text.replace("pocketune.initial/frogs", "pocketune.initial/foxes"))
        Program.open(lacking, "birds")
        assertRefused("pocketune.initial/") { Program.open(lacking, "frogs") }
    }

    @Test
    fun `a newer format is told apart from damage`() {
        assertFailsWith<NewerProgramException> { read(manifest.replace("pocketune/1", "pocketune/2")) }
        assertFailsWith<NewerProgramException> { read("""{"format":"pocketune/2","all":"new"}""") }
    }

    @Test
    fun `what is no manifest is refused`() {
        for (text in listOf("", "null", "[]", "{}", "[".repeat(1_000_000), "\"\\ud800\"", "{\"a\":NaN}")) {
            assertFailsWith<DamagedProgramException>(text.take(20)) { read(text) }
        }
    }

    @Test
    fun `a good program that infers nothing is refused by what to build`() {
        val refused = assertFailsWith<DamagedProgramException> { Fixture.program("trains-only") }
        assertTrue("signatures=(\"train\", \"infer\", ...)" in refused.message.orEmpty())
    }

    @Test
    fun `certificates hold for the engine's version`() {
        val good = "{\"on\":\"gpu\",\"engine\":\"LiteRT GPU\",\"version\":\"2.3.0\",\"driver\":\"SwiftShader\"," +
            "\"date\":\"2026-11-22T19:34:58Z\",\"steps\":10,\"ok\":true,\"whole\":true,\"precision\":\"float32\"," +
            "\"loss_error\":1e-7,\"update_error\":2e-7,\"output_error\":null,\"floor\":null,\"failures\":[]}"
        val certified = manifest.replace("\"certificates\":[]", "\"certificates\":[$good]")
        assertTrue(read(certified).isCertified("gpu", "LiteRT GPU", "2.3.0"))
        assertFalse(read(certified).isCertified("gpu", "LiteRT GPU", "2.4.0"))
        assertFalse(read(certified).isCertified("web", "LiteRT GPU", "2.3.0"))
        assertFalse(read(manifest).isCertified("gpu", "LiteRT GPU", "2.3.0"))
        val failure = "{\"layer\":\"a\",\"operator\":\"PAD\",\"what\":\"refused\",\"advice\":\"\"}"
        val failed = certified.replace("\"ok\":true", "\"ok\":false").replace("\"failures\":[]", "\"failures\":[$failure]")
        assertEquals("a", read(failed).certificates.single().failures.single().layer)
        assertFalse(read(failed).isCertified("gpu", "LiteRT GPU", "2.3.0"))
    }

    /** The tests have 256 MB (see the pom). */
    @Test
    fun `a manifest of very many values is refused before it fills the memory`() {
        val deep = "[".repeat(60) + "]".repeat(60)
        for (value in listOf("0", "[]", "{}", "\"\"", deep, "{\"\":".repeat(60) + "0" + "}".repeat(60))) {
            val values = "$value,".repeat((4 shl 20) / (value.length + 1) - 10)
            assertFailsWith<DamagedProgramException>(value) { read("{\"labels\":[${values}0]}") }
        }
    }

    private fun manifestOf(program: String): String {
        val entries = ModelMetadata(ByteBuffer.wrap(Fixture.file("$program.tflite").readBytes())).entries("pocketune.initial/")
        return String(entries.getValue("pocketune.manifest").copy())
    }

    private fun read(text: String) = readManifest(ByteBuffer.wrap(text.toByteArray()))

    private fun resealed(text: String): ByteArray {
        val mark = "pocketune-sha256:"
        val start = text.indexOf(mark) + mark.length
        val blank = text.replaceRange(start, start + 64, "0".repeat(64))
        val digest = MessageDigest.getInstance("SHA-256").digest(blank.toByteArray(Charsets.ISO_8859_1)).toHex()
        return blank.replaceRange(start, start + 64, digest).toByteArray(Charsets.ISO_8859_1)
    }
}
