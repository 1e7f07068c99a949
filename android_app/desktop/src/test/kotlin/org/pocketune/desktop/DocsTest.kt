package org.pocketune.desktop

import java.io.File
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.MethodSource

/** Every block of Kotlin in README.md and docs/ compiles and, where a computer can, runs. */
class DocsTest {
    @TempDir lateinit var folder: File

    @ParameterizedTest(name = "{0}")
    @MethodSource("withKotlin")
    fun `the blocks of a page run`(page: String) {
        val blocks = blocksOf(page, pages(root).getValue(page))
        for (left in blocks) (left.skipped ?: left.unrun)?.let { println("$page:${left.line}: $it") }
        val whole = File(folder, "Page.kt").apply { writeText(joined(blocks)) }
        loadOnce
        runMain(whole, emptyList())
        val files = blocks.filter { it.file != null && it.skipped == null }
        for (block in files) File(folder, checkNotNull(block.file)).writeText(block.text)
        if (files.isNotEmpty()) compile(files.map { File(folder, it.file!!) }, File(folder, "out"))
        for (block in files.filter { it.unrun == null && it.file != TEN_LINES }) assertEquals(0, run(block.file!!))
    }

    @Test
    fun `the ten lines train, keep, export and end by themselves`() {
        val lines = blocksOf("android.md", pages(root).getValue("docs/android.md")).single { it.file == TEN_LINES }
        File(folder, TEN_LINES).writeText(lines.text)
        assertTrue("close()" !in lines.text, "nothing but the end of main ends them")
        assertEquals(0, run(TEN_LINES), File(folder, "said").readText())
        assertTrue(File(folder, "learned/personal.state").isFile)
        assertTrue(File(folder, "mine.tflite").isFile)
        val said = File(folder, "said").readText()
        val losses = Regex("loss ([\\d.E-]+)").findAll(said).map { it.groupValues[1].toFloat() }.toList()
        assertTrue(losses.takeLast(10).average() < losses.take(10).average() / 2, said)
        assertContains(said, "kept as 1")
    }

    @Test
    fun `a planted block that does not compile is found`() {
        val page = "```kotlin\nval x: Int = \"no\"\n```\n"
        File(folder, "Page.kt").writeText(joined(blocksOf("planted", page)))
        assertFailsWith<UsageException> { runMain(File(folder, "Page.kt"), emptyList()) }
    }

    @Test
    fun `a planted block that fails fails its page, and a marked one is left out`() {
        val page = "1. So:\n\n    ```kotlin\n    error(given)\n    ```\n"
        val given = "<!-- invisible-code-block: kotlin\nval given = \"planted\"\n-->\n"
        File(folder, "Page.kt").writeText(joined(blocksOf("planted", given + page)))
        assertContains(assertFailsWith<IllegalStateException> { runMain(File(folder, "Page.kt"), emptyList()) }.message!!, "planted")
        val marked = listOf("skip", "compile").joinToString("") { "<!-- $it: next \"no reason\" -->\n" + page }
        File(folder, "Page.kt").writeText(joined(blocksOf("planted", given + marked)))
        runMain(File(folder, "Page.kt"), emptyList())
    }

    /** Runs a file in a process of its own, in the folder, as `android_app/desktop/run` does. */
    private fun run(file: String): Int {
        File(programs, "docs.tflite").copyTo(File(folder, "model.tflite"), overwrite = true)
        // Android's own classes are there to compile against.
        val path = System.getProperty("java.class.path").split(File.pathSeparator).filter { "android-all" !in it }
        val java = File(System.getProperty("java.home"), "bin/java").path
        val natives = "-Djava.library.path=${System.getProperty("java.library.path")}"
        val command = listOf(java, natives, "-cp", path.joinToString(File.pathSeparator), "org.pocketune.desktop.MainKt", file)
        val process = ProcessBuilder(command).directory(folder).redirectErrorStream(true).redirectOutput(File(folder, "said"))
        return process.start().waitFor()
    }

    private companion object {
        const val TEN_LINES = "TenLines.kt"
        val root = File(System.getProperty("root"))
        val programs = File(System.getProperty("programs"))
        val loadOnce by lazy { loadAndroid() }

        @JvmStatic
        fun withKotlin(): List<String> = pages(root).filter { (page, text) -> blocksOf(page, text).isNotEmpty() }.keys.sorted()
    }
}
