package org.pocketune.app.core

import java.io.InputStream
import java.security.MessageDigest
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import org.pocketune.trainer.DamagedProgramException
import org.pocketune.trainer.Sample

/** What scripts/build_app_assets says about the files that it made. */
@Serializable
data class Description(
    val format: String,
    val program: AssetFile,
    val samples: SampleFile,
    val labels: List<String>,
    val spare: Int,
    val preprocessing: Preprocessing,
    val recipe: Recipe,
) {
    companion object {
        const val FILE = "digits.json"

        /** Throws [DamagedProgramException] for anything but a description of a kind that this app knows. */
        fun parse(text: String): Description {
            val description = try {
                Json.decodeFromString<Description>(text)
            } catch (e: SerializationException) {
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
data class SampleFile(val file: String, val sha256: String, val levels: Int)

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
)

/** The bytes of an asset, checked. Throws [DamagedProgramException]. */
fun InputStream.readChecked(name: String, sha256: String): ByteArray {
    val bytes = use { it.readBytes() }
    val digest = MessageDigest.getInstance("SHA-256").digest(bytes).joinToString("") { "%02x".format(it) }
    if (digest != sha256) throw DamagedProgramException("$name is not the file that was built")
    return bytes
}

/** The built-in samples of [bytes], whose images have [pixels] pixels. */
fun builtInSamples(bytes: ByteArray, pixels: Int, levels: Int): List<Sample> =
    bytes.asList().chunked(1 + pixels).map { row ->
        Sample(FloatArray(pixels) { row[1 + it] / levels.toFloat() }, row[0].toInt())
    }
