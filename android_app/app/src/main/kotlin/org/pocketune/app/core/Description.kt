package org.pocketune.app.core

import java.security.MessageDigest
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.pocketune.trainer.DamagedProgramException
import org.pocketune.trainer.Manifest
import org.pocketune.trainer.Role
import org.pocketune.trainer.Sample

/**
 * What scripts/build_app_assets says about the files that it made.
 *
 * @property compiled the program compiled ahead of time for the NPUs of some SoCs, by the model of the SoC.
 */
@Serializable
data class Description(
    val format: String,
    val program: AssetFile,
    val samples: SampleFile,
    val labels: List<String>,
    val spare: Int,
    val preprocessing: Preprocessing,
    val recipe: Recipe,
    val compiled: Map<String, AssetFile> = emptyMap(),
) {
    init {
        require(labels.isNotEmpty() && labels.distinct() == labels && spare >= 0) { "labels or spare classes" }
    }

    /** Throws [DamagedProgramException] where it is not about this program and these samples. */
    fun check(manifest: Manifest, samples: List<Sample>) {
        val pixels = preprocessing.run { size * size }
        val fits = manifest.evaluate != null && manifest.classes == labels.size + spare &&
            manifest.infer.taking(Role.INPUT).map { it.rowSize } == listOf(pixels) &&
            samples.isNotEmpty() && samples.all { it.label in labels.indices }
        if (!fits) throw DamagedProgramException("$FILE does not describe ${program.file}")
    }

    companion object {
        const val FILE = "digits.json"

        /** Throws [DamagedProgramException] for anything but a description of a kind that this app knows. */
        fun parse(text: String): Description {
            val description = try {
                Json.decodeFromString<Description>(text)
            } catch (e: IllegalArgumentException) {
                throw DamagedProgramException("$FILE: ${e.message}", e)
            }
            if (description.format != "pocketune-app/1" || description.preprocessing.kind != "strokes/1") {
                throw DamagedProgramException("$FILE: of a kind that this app does not know")
            }
            return description
        }
    }
}

@Serializable
data class AssetFile(val file: String, val sha256: String)

/** Built-in samples: for each its label, a byte, and its pixels, a byte of 0 to [levels] each. */
@Serializable
data class SampleFile(val file: String, val sha256: String, val levels: Int) {
    init {
        require(levels in 1..MOST_LEVELS) { "levels: $levels" }
    }

    private companion object {
        const val MOST_LEVELS = 255
    }
}

/**
 * How the app trains.
 *
 * @property replay share of built-in samples in an epoch.
 * @property heldOutEvery of each class one drawing of so many is kept aside to judge by.
 */
@Serializable
data class Recipe(
    val epochs: Int,
    @SerialName("learning_rate") val learningRate: Float,
    val replay: Double,
    @SerialName("held_out_every") val heldOutEvery: Int,
) {
    init {
        require(epochs > 0 && learningRate > 0 && replay in 0.0..MOST_REPLAY && heldOutEvery > 1) { "recipe: $this" }
    }

    private companion object {
        const val MOST_REPLAY = 0.9
    }
}

/** These bytes of an asset, checked. Throws [DamagedProgramException]. */
fun ByteArray.checked(name: String, sha256: String): ByteArray {
    val digest = MessageDigest.getInstance("SHA-256").digest(this).joinToString("") { "%02x".format(it) }
    if (digest != sha256) throw DamagedProgramException("$name is not the file that was built")
    return this
}

/** The built-in samples of [bytes], whose images have [pixels] pixels. Throws [DamagedProgramException]. */
fun builtInSamples(bytes: ByteArray, pixels: Int, levels: Int): List<Sample> {
    if (bytes.size % (1 + pixels) != 0) throw DamagedProgramException("the samples are not of $pixels pixels")
    return bytes.asList().chunked(1 + pixels).map { row ->
        Sample(FloatArray(pixels) { row[1 + it] / levels.toFloat() }, row[0].toInt())
    }
}
