package org.pocketune.app

import java.io.File
import java.security.MessageDigest
import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.pocketune.app.core.Npu
import org.pocketune.app.core.Problem
import org.robolectric.RobolectricTestRunner

/** Programs that were compiled for a phone's NPU before. */
@RunWith(RobolectricTestRunner::class)
class AheadOfTimeTest : ProcessScene() {
    @Test fun `what was compiled for the NPU of this very phone is handed to its runtime, whole or not at all`() {
        val compiled = byteArrayOf(1, 2, 3)
        val sha256 = MessageDigest.getInstance("SHA-256").digest(compiled).joinToString("") { "%02x".format(it) }
        val entry = "{\"compiled\":{\"SM8650\":{\"file\":\"digits-SM8650.tflite\",\"sha256\":\"$sha256\"}},"
        fun assets(found: ByteArray) = { name: String ->
            when (name) {
                "digits-SM8650.tflite" -> found.inputStream()
                "digits.json" -> File("target/assets/$name").readText().replaceFirst("{", entry).byteInputStream()
                else -> File("target/assets/$name").inputStream()
            }
        }
        for ((soc, wanted) in listOf("SM8650" to listOf(compiled.toList()), "SM8550" to emptyList())) {
            val given = mutableListOf<List<Byte>>()
            val npu = Npu(soc) { bytes -> runtime.also { given += ByteArray(bytes.remaining()).also(bytes::get).toList() } }
            process(assets(compiled), npu = npu) { until { it.model != null } }
            assertEquals(wanted, given)
        }
        process(assets(byteArrayOf(1, 2)), npu = Npu("SM8650") { error("a runtime was opened") }) {
            until { it.problem == Problem.PROGRAM_DAMAGED }
        }
    }
}
