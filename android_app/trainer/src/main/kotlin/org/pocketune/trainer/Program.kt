package org.pocketune.trainer

import java.io.File
import java.io.IOException
import java.io.InputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.channels.FileChannel
import kotlinx.serialization.json.JsonElement

private const val MANIFEST = "pocketune.manifest"
private const val INITIAL = "pocketune.initial/"
private const val FROZEN = "pocketune.frozen/"
private const val INFERENCE = "pocketune.inference"

/**
 * A checked training program.
 *
 * @property manifest what it says about itself.
 * @property digest a sha256 over the file, in hexadecimal digits: heads of one file have the same.
 * @property head which of the heads of a file of several; null of a file of one.
 */
class Program private constructor(
    private val bytes: ByteBuffer,
    private val model: ModelMetadata,
    private val metadata: Map<String, ByteBuffer>,
    val manifest: Manifest,
    val digest: String,
    val head: String?,
) {
    /** The `.tflite` in a direct buffer in native order, read-only: the very bytes that were checked. */
    val data: ByteBuffer get() = bytes.asReadOnlyBuffer().apply { clear() }.order(ByteOrder.nativeOrder())

    /** What a [signature] of the manifest is called in the file. */
    fun stored(signature: String): String = Heads.stored(signature, head)

    /** The built value of a state tensor, little-endian; in the file one element stands for a tensor of equal ones. */
    fun initial(tensor: StateTensor): ByteBuffer {
        val stored = metadata.getValue(INITIAL + tensor.tensor)
        if (stored.limit() == tensor.byteSize) return stored
        val whole = ByteBuffer.allocate(tensor.byteSize)
        while (whole.hasRemaining()) whole.put(stored.duplicate().apply { clear() })
        return whole.apply { clear() }
    }

    /** The state as built. */
    internal fun initialState(): List<StoredTensor> =
        manifest.stateTensors.map { StoredTensor(it.tensor, it.dtype, it.shape, initial(it)) }

    /** The plain model with the weights of a state, in pieces that follow one another in its file. */
    internal fun plainModel(state: List<StoredTensor>): List<ByteBuffer> {
        val entry = metadata[INFERENCE] ?: throw DamagedProgramException("it does not say how its plain model is put together: build it again")
        val merged = RedrawnChannels(this).folded(state)
        val tensors = manifest.realTensors(merged.associate { it.name to it.bytes })
        return Assembly.read(entry).pieces(bytes.limit(), model::buffer, tensors) { weight(it, tensors) }
    }

    /** A weight that trained, in the model's own layout and full shape, little-endian; null for one that did not. */
    private fun weight(name: String, state: Map<String, ByteBuffer>): ByteBuffer? {
        val spec = manifest.parameters.firstOrNull { it.name == name } ?: return null
        val whole = directBuffer(spec.shape.product().toInt() * spec.dtype.bytes).order(ByteOrder.LITTLE_ENDIAN)
        spec.frozen?.let { whole.place(metadata[it.entry] ?: damagedAssembly("it has no ${it.entry}"), spec, it.view) }
        for (piece in spec.pieces) whole.place(state.getValue(piece.tensor), spec, piece.view)
        return whole
    }

    /** Writes a part of a weight to its places; one element stands for a part of equal ones. */
    private fun ByteBuffer.place(part: ByteBuffer, of: ParameterSpec, view: List<JsonElement>) {
        val size = of.dtype.bytes
        val places = ViewStep.places(ModelTensor(of.name, of.shape, view))
        val step = if (part.limit() == size) 0 else size
        if (part.limit() < size || step * (places.size - 1) + size > part.limit()) damagedAssembly("${of.name} has ${part.limit()} bytes")
        places.forEachIndexed { i, place -> for (k in 0 until size) put(place * size + k, part.get(i * step + k)) }
    }

    companion object {
        /**
         * Opens a `.tflite` file, or with [head] one of the heads of a file of several. It is mapped, not read: another may be
         * renamed over it, but nobody may write into it. Throws [ProgramException]: not one bit of it may differ from what
         * was built.
         */
        fun open(file: File, head: String? = null): Program =
            try {
                file.inputStream().use { it.channel.run { open(this, 0, size(), head) } }
            } catch (error: IOException) {
                throw DamagedProgramException("cannot read $file: ${error.lastLine()}", error)
            }

        /** The same from a part of a file, as an app's uncompressed asset is one; the caller closes the channel. */
        @Throws(IOException::class)
        fun open(channel: FileChannel, start: Long, size: Long, head: String? = null): Program {
            if (size > Int.MAX_VALUE) throw DamagedProgramException("it is larger than 2 GiB, no program is")
            return checked(channel.map(FileChannel.MapMode.READ_ONLY, start, size), head)
        }

        /** The same from a stream, read to the end into memory; the caller closes it. */
        @Throws(IOException::class)
        fun open(stream: InputStream, head: String? = null): Program = open(stream.readBytes(), head)

        /** The same from memory; the array is copied. */
        fun open(bytes: ByteArray, head: String? = null): Program =
            checked(directBuffer(bytes.size).apply { fillFrom(ByteBuffer.wrap(bytes)) }, head)

        private fun checked(data: ByteBuffer, head: String?): Program {
            val digest = verifyChecksum(data)
            val model = ModelMetadata(data)
            val metadata = Heads.metadata(model.entries(INITIAL, FROZEN, INFERENCE), head)
            val manifest = readManifest(
                metadata[MANIFEST] ?: throw DamagedProgramException("it is no Pocketune program: it has no manifest"),
            )
            if ("infer" !in manifest.calls) {
                throw DamagedProgramException(
                    "it has no signature \"infer\", and a trainer shows what was learned: build it with " +
                        "signatures=(\"train\", \"infer\", ...)",
                )
            }
            for (tensor in manifest.stateTensors) {
                if (metadata[INITIAL + tensor.tensor]?.limit() !in listOf(tensor.byteSize, tensor.dtype.bytes)) {
                    throw DamagedProgramException("its entry '$INITIAL${tensor.tensor}' is missing or of another size")
                }
            }
            return Program(data, model, metadata, manifest, digest, head)
        }
    }
}
