package org.pocketune.desktop

import java.io.File

/**
 * A block of Kotlin of a page of the documentation.
 *
 * @property given what the page takes as given, in an invisible comment: it stands at the top of the file.
 * @property skipped why it is not compiled, and [unrun] why it is compiled and not run; null where it is.
 */
internal class Block(
    val page: String,
    val line: Int,
    val text: String,
    val given: Boolean,
    val skipped: String?,
    val unrun: String?,
) {
    /** The file that a first line `// Name.kt` says it is; null of a block that is a part of one. */
    val file: String? = Regex("// ([\\w.-]+\\.kt)\n").matchAt(text, 0)?.groupValues?.get(1)
}

private val FENCE = Regex("( *)```kotlin")
private val GIVEN = Regex("<!-- invisible-code-block: kotlin")
private val MARKER = Regex("<!-- (skip|compile): next \"(.+)\" -->")

/** The blocks of Kotlin of a page, from the top. */
internal fun blocksOf(page: String, text: String): List<Block> {
    val blocks = mutableListOf<Block>()
    val lines = text.lines()
    val marks = mutableMapOf<String, String>()
    var at = 0
    while (at < lines.size) {
        val (line, number) = lines[at++] to at
        MARKER.matchEntire(line.trim())?.let { marks[it.groupValues[1]] = it.groupValues[2] }
        val fence = FENCE.matchEntire(line)
        val isGiven = GIVEN.matches(line)
        if (fence != null || isGiven) {
            val indent = fence?.groupValues?.get(1).orEmpty()
            val end = if (isGiven) "-->" else "$indent```"
            val body = lines.drop(at).takeWhile { it != end }
            at += body.size + 1
            val code = body.joinToString("") { "${it.removePrefix(indent)}\n" }
            blocks += Block(page, number, code, isGiven, marks["skip"], marks["compile"])
        }
        if (line.trim().startsWith("```") || isGiven) marks.clear()
    }
    return blocks
}

/** A file of all parts of a page: imports, what is given, and a `main` of those that run. */
internal fun joined(blocks: List<Block>): String {
    val (imports, givens) = blocks.filter { it.given }.flatMap { it.text.lines() }.partition { it.startsWith("import ") }
    val parts = blocks.filter { !it.given && it.file == null && it.skipped == null }
    val taken = parts.flatMap { it.text.lines() }.filter { it.startsWith("import ") }
    fun body(part: Block) = part.text.lines().filterNot { it.startsWith("import ") }.joinToString("\n")
    val (run, compiled) = parts.partition { it.unrun == null }
    val functions = compiled.map { "suspend fun ofLine${it.line}() {\n${body(it)}\n}\n" }
    val main = "fun main(): Unit = kotlinx.coroutines.runBlocking {\n${run.joinToString("\n", transform = ::body)}\n}\n"
    return ((imports + taken).distinct() + givens + functions + main).joinToString("\n")
}

/** The pages that are written by hand, by their names. */
internal fun pages(root: File): Map<String, String> =
    (sequenceOf(File(root, "README.md")) + File(root, "docs").walk().filter { it.extension == "md" })
        .associate { it.relativeTo(root).path to it.readText() }
