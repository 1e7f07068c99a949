package org.pocketune.desktop

import java.io.File
import kotlin.system.exitProcess
import org.pocketune.trainer.PocketuneException

private const val USAGE = """Usage, on x86_64 Linux:
  run FILE.kt [ARGUMENTS]                                 compiles a Kotlin file and runs its main
  run PROGRAM.tflite [DATA.npz] [--epochs N] [--rate R] [--head NAME]
                                                          trains the program, and writes what it became
  run PROGRAM.tflite DATA.npz --superlink HOST:PORT [--idle SECONDS] [--poll SECONDS] [--personal PATTERN]...
                                                          takes part in federated rounds"""

/** `android_app/desktop/run`: the trainer on a computer, with TFLite's official Android library. */
fun main(arguments: Array<String>) {
    val file = File(arguments.firstOrNull() ?: refuse(USAGE))
    val rest = arguments.drop(1)
    if (!file.isFile) refuse("there is no file $file\n$USAGE")
    loadAndroid()
    try {
        when (file.extension) {
            "kt" -> runMain(file, rest)
            "tflite" -> if ("--superlink" in rest) takePart(file, rest) else tryOut(file, rest)
            else -> refuse("$file is neither a Kotlin file nor a program\n$USAGE")
        }
    } catch (error: PocketuneException) {
        refuse(error.message ?: error.toString())
    } catch (error: UsageException) {
        refuse(error.message ?: error.toString())
    }
}

/** What the user gave cannot be used; the message says why. */
internal class UsageException(message: String) : Exception(message)

/** The library links to these by name; once they are loaded it finds them. */
internal fun loadAndroid() {
    for (name in listOf("c", "m", "dl", "log")) System.load("${System.getProperty("java.library.path")}/lib$name.so")
}

private fun refuse(problem: String): Nothing {
    System.err.println("run: $problem")
    exitProcess(2)
}
