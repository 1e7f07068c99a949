package org.pocketune.runtime.tflite

import java.nio.file.Files

/** What `src/test/native/arm64` runs, in a JVM without JUnit: there a second is a minute. */
internal object OnPhoneLibrary {
    @JvmStatic
    fun main(arguments: Array<String>) {
        for (model in listOf("mlp", "cnn", "mlp-by-2", "cnn-by-4")) {
            for (export in listOf("variables", "stateless")) {
                val test = SameAsPythonTest()
                test.folder = Files.createTempDirectory("arm64").toFile()
                test.`fifty steps give the same losses and the same state`(model, export, xnnpack = true)
                test.folder.deleteRecursively()
                println("arm64: $model, $export: as Python")
            }
            val test = SameAsPythonTest()
            test.folder = Files.createTempDirectory("arm64").toFile()
            test.`fifty split steps give the same losses and the same state`(model, xnnpack = true)
            test.folder.deleteRecursively()
            println("arm64: $model, split: as Python")
        }
    }
}
