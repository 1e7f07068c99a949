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
    fun `a changed program with a good seal is checked all the same`() {
        val renamed = String(bytes, Charsets.ISO_8859_1).replace("pocketune.manifest", "pocketune.manifesT")
        val failure = assertFailsWith<DamagedProgramException> { Program.open(resealed(renamed)) }
        assertTrue("no manifest" in failure.message.orEmpty())
        val lacking = String(bytes, Charsets.ISO_8859_1).replace("pocketune.initial/a/b", "pocketune.initial/a/X")
        assertFailsWith<DamagedProgramException> { Program.open(resealed(lacking)) }
    }

    @Test
    fun `a newer format is told apart from damage`() {
        assertFailsWith<NewerProgramException> { read(manifest.replace("pocketune/1", "pocketune/2")) }
        assertFailsWith<NewerProgramException> { read("""{"format":"pocketune/2","all":"new"}""") }
    }

    @Test
    fun `manifests that contradict themselves are refused`() {
        val lies = listOf(
            "\"micro_batch\":8" to "\"micro_batch\":4",
            "\"micro_batch\":8" to "\"micro_batch\":0",
            "\"micro_batch\":8" to "\"micro_batch\":16",
            "\"batch\":8,\"micro" to "\"batch\":16,\"micro",
            "\"evaluate\":{" to "\"apply\":{",
            "\"evaluate\":{" to "\"features\":{",
            "\"batch\":8" to "\"batch\":0",
            "\"batch\":8" to "\"batch\":9",
            "\"batch\":8" to "\"batch\":\"8\"",
            "\"batch\":8" to "\"batch\":8.0",
            "\"batch\":8" to "\"batch\":8,\"more\":1",
            "\"graph_hash\":\"" to "\"graph_hash\":\"x",
            "\"role\":\"learning_rate\"" to "\"role\":\"tick\"",
            "\"role\":\"loss\"" to "\"role\":\"input\"",
            "\"restore\":{" to "\"restores\":{",
            "\"infer\":{" to "\"infers\":{",
            // Not what `train` takes.
            "\"infer\":{\"inputs\":[{\"name\":\"x\"" to "\"infer\":{\"inputs\":[{\"name\":\"z\"",
            "\"evaluate\":{\"inputs\":[{\"name\":\"x\",\"shape\":[8,6" to "\"evaluate\":{\"inputs\":[{\"name\":\"x\",\"shape\":[8,7",
            "\"shape\":[16]" to "\"shape\":[17]",
            "\"shape\":[16]" to "\"shape\":[16,1073741824,1073741824]",
            "\"shape\":[16]" to "\"shape\":[]",
            "\"shape\":[36,16]" to "\"shape\":[-36,-16]",
            "\"float32\"" to "\"float16\"",
            "\"view\":[" to "\"view\":[[\"slice\",0,0,99],",
            "\"view\":[" to "\"view\":[[\"transpose\",[0,0]],",
            "\"view\":[" to "\"view\":[[\"spin\"],",
            "\"loss\":\"" to "\"loss\":null,\"x\":\"",
            "\"target_labels\":{\"y\"" to "\"target_labels\":{\"z\"",
            "\"count\":4" to "\"count\":0",
        )
        assertRefused(manifest, lies)
        for (text in listOf("", "null", "[]", "{}", "[".repeat(1_000_000), "\"\\ud800\"", "{\"a\":NaN}")) {
            assertFailsWith<DamagedProgramException>(text.take(20)) { read(text) }
        }
    }

    @Test
    fun `accumulators are those of what trains, in the calls of a step, and nowhere else`() {
        val gradient = "{\"name\":\"gradient/a/b\",\"shape\":[16],\"dtype\":\"float32\",\"role\":\"gradient\"}"
        assertRefused(
            manifestOf("mlp-by-2-stateless"),
            listOf(
                "\"micro_batch\":2" to "\"micro_batch\":8",
                "\"micro_batch\":2" to "\"micro_batch\":3",
                "\"apply\":{" to "\"train\":{",
                "\"accumulate\":{" to "\"train\":{",
                "\"evaluate\":{" to "\"train\":{",
                ",$gradient" to "",
                gradient to gradient.replace("a/b", "a/x"),
                gradient to gradient.replace("gradient/", "gradients/"),
                gradient to gradient.replace("16", "4,4"),
                gradient to gradient.replace("float32", "int32"),
                gradient to gradient.replace("\"gradient\"", "\"input\""),
                "\"evaluate\":{\"inputs\":[" to "\"evaluate\":{\"inputs\":[$gradient,",
                "\"infer\":{\"inputs\":[" to "\"infer\":{\"inputs\":[$gradient,",
            ),
        )
        assertRefused(
            manifestOf("mlp-by-2-variables"),
            listOf("accumulate", "apply", "save").map { "\"$it\":{\"inputs\":[" to "\"$it\":{\"inputs\":[$gradient," },
        )
    }

    @Test
    fun `the halves of a split step pass each other what trains`() {
        val gradient = "{\"name\":\"gradient/a/b\",\"shape\":[16],\"dtype\":\"float32\",\"role\":\"gradient\"}"
        val state = "{\"name\":\"a/b\",\"shape\":[16],\"dtype\":\"float32\",\"role\":\"state\"}"
        assertRefused(
            manifestOf("noisy-split"),
            listOf(
                "\"state\":\"split\"" to "\"state\":\"stateless\"",
                "\"state\":\"split\"" to "\"state\":\"variables\"",
                "\"gradients\":{" to "\"train\":{",
                "\"apply\":{" to "\"accumulate\":{",
                "\"evaluate\":{" to "\"train\":{",
                ",$gradient" to "",
                "\"outputs\":[$state," to "\"outputs\":[",
                "\"role\":\"loss\"},{\"name\":\"random/step\"" to "\"role\":\"loss\"},{\"name\":\"optimizer/0/count\"",
                "\"infer\":{\"inputs\":[" to "\"infer\":{\"inputs\":[$gradient,",
                "\"loss_scale\":4.0" to "\"loss_scale\":3.0",
                "\"loss_scale\":4.0" to "\"loss_scale\":0.0",
                "\"loss_scale\":4.0" to "\"loss_scale\":-4.0",
                "\"loss_scale\":4.0" to "\"loss_scale\":1e999",
            ),
        )
        assertTrue("loss_scale\":1.0" in manifestOf("mlp-stateless"))
        assertRefused(manifestOf("mlp-stateless"), listOf("loss_scale\":1.0" to "loss_scale\":2.0"))
    }

    @Test
    fun `losses by output are those of the targets`() {
        val lies = listOf(
            "\"loss\":{" to "\"loss\":{\"more\":\"mse\",",
            "\"loss\":{\"kind\":\"" to "\"loss\":{\"kind\":1,\"x\":\"",
            "\"loss\":{\"kind\"" to "\"loss\":{\"king\"",
            "\"name\":\"y/kind\"" to "\"name\":\"y\"",
            "\"name\":\"kind_loss\",\"shape\":[1]" to "\"name\":\"kind_loss\",\"shape\":[2]",
        )
        assertRefused(manifestOf("two-variables"), lies)
    }

    @Test
    fun `certificates hold for the engine's version, and do not contradict themselves`() {
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
        val lies = listOf(
            "\"on\":\"gpu\"" to "\"on\":\"toaster\"",
            "[$good]" to "[$good,$good]",
            "2026-11-22T19:34:58Z" to "today",
            "\"steps\":10" to "\"steps\":0",
            "\"whole\":true" to "\"whole\":false",
            "\"loss_error\":1e-7" to "\"loss_error\":-1e-7",
            "\"update_error\":2e-7" to "\"update_error\":null",
            "\"failures\":[]" to "\"failures\":[$failure]",
            "\"precision\":\"float32\"" to "\"precision\":\"float32\",\"more\":1",
        )
        assertRefused(certified, lies)
        assertRefused(failed, listOf("[$failure]" to "[${"$failure,".repeat(20)}$failure]"))
    }

    private fun assertRefused(manifest: String, lies: List<Pair<String, String>>) {
        read(manifest)
        for ((from, to) in lies) {
            assertTrue(from in manifest, from)
            assertFailsWith<DamagedProgramException>("$from -> $to") { read(manifest.replaceFirst(from, to)) }
        }
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
