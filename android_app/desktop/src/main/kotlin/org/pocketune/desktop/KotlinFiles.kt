package org.pocketune.desktop

import java.io.ByteArrayOutputStream
import java.io.File
import java.io.PrintStream
import java.lang.reflect.InvocationTargetException
import java.lang.reflect.Modifier
import java.net.URLClassLoader
import java.nio.file.Files
import org.jetbrains.kotlin.cli.common.ExitCode
import org.jetbrains.kotlin.cli.jvm.K2JVMCompiler

/**
 * Compiles Kotlin files into a folder against what this process has on its class path.
 *
 * @throws UsageException they do not compile; the message is the compiler's.
 */
internal fun compile(files: List<File>, out: File) {
    val told = ByteArrayOutputStream()
    val options = arrayOf("-no-stdlib", "-no-reflect", "-nowarn", "-d", out.path)
    val given = options + arrayOf("-cp", System.getProperty("java.class.path")) + files.map { it.path }
    val code = PrintStream(told).use { K2JVMCompiler().exec(it, *given) }
    if (code != ExitCode.OK) throw UsageException("the compiler says:\n${told.toString().trim()}")
}

/** Compiles a file and runs its `main`. */
internal fun runMain(file: File, arguments: List<String>) {
    val out = Files.createTempDirectory("pocketune").toFile()
    try {
        compile(listOf(file), out)
        URLClassLoader(arrayOf(out.toURI().toURL())).use { loader ->
            val names = out.walk().filter { it.extension == "class" && '$' !in it.name }
                .map { it.relativeTo(out).path.removeSuffix(".class").replace(File.separatorChar, '.') }
            val main = names.map(loader::loadClass).firstNotNullOfOrNull { type ->
                type.declaredMethods.find {
                    it.name == "main" && Modifier.isStatic(it.modifiers) && it.parameterTypes.contentEquals(MAIN)
                }
            } ?: throw UsageException("$file has no main")
            try {
                main.invoke(null, arguments.toTypedArray())
            } catch (error: InvocationTargetException) {
                throw error.targetException
            }
        }
    } finally {
        out.deleteRecursively()
    }
}

private val MAIN = arrayOf<Class<*>>(Array<String>::class.java)
