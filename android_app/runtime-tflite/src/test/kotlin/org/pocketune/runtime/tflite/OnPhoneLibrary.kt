package org.pocketune.runtime.tflite

import java.nio.file.Files

/** What `src/test/native/arm64` runs, in a JVM without JUnit: there a second is a minute. */
internal object OnPhoneLibrary {
    private const val SPLIT = "split"
    private val few = listOf("mlp" to "variables", "cnn" to "stateless", "cnn-by-4" to SPLIT)
    private val all = listOf("mlp", "cnn", "mlp-by-2", "cnn-by-4").flatMap { model ->
        listOf("variables", "stateless", SPLIT).map { model to it }
    }

    @JvmStatic
    fun main(arguments: Array<String>) {
        for ((model, export) in if ("--all" in arguments) all else few) {
            val test = SameAsPythonTest()
            test.folder = Files.createTempDirectory("arm64").toFile()
            if (export == SPLIT) {
                test.`fifty split steps give the same losses and the same state`(model, xnnpack = true)
            } else {
                test.`fifty steps give the same losses and the same state`(model, export, xnnpack = true)
            }
            test.folder.deleteRecursively()
            println("arm64: $model, $export: as Python")
        }
    }
}
