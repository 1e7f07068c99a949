package org.pocketune.runtime.litert

import com.google.ai.edge.litert.CompiledModel
import com.google.ai.edge.litert.LiteRtException
import com.google.ai.edge.litert.TensorBuffer
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.RuntimeReport
import org.pocketune.trainer.TensorSpec
import org.pocketune.trainer.TrainingRuntime

/**
 * A program in a `CompiledModel`. LiteRT takes missing inputs and arrays that are too short without a word and a new buffer
 * of it holds anything, so all of that is checked and written here.
 */
internal class LitertRuntime(
    private val model: CompiledModel,
    private val program: Program,
    override val report: RuntimeReport,
) : TrainingRuntime {
    private val manifest = program.manifest

    private class Tensor(private val spec: TensorSpec, val buffer: TensorBuffer) : AutoCloseable by buffer {
        private val floats = FloatArray(if (spec.dtype == Dtype.FLOAT32) spec.size else 0)
        private val ints = IntArray(if (spec.dtype == Dtype.INT32) spec.size else 0)
        private val bools = BooleanArray(if (spec.dtype == Dtype.BOOL) spec.size else 0)
        private val bytes = ByteArray(if (spec.dtype in BYTES) spec.size else 0)

        fun write(from: ByteBuffer) = when (spec.dtype) {
            Dtype.FLOAT32 -> buffer.writeFloat(floats.also { from.asFloatBuffer().get(it) })
            Dtype.INT32 -> buffer.writeInt(ints.also { from.asIntBuffer().get(it) })
            Dtype.BOOL -> buffer.writeBoolean(bools.also { for (i in it.indices) it[i] = from.get(i) != 0.toByte() })
            Dtype.INT8, Dtype.UINT8 -> buffer.writeInt8(bytes.also { from.duplicate().get(it) })
            Dtype.INT16 -> refuse()
        }

        fun read(to: ByteBuffer) {
            when (spec.dtype) {
                Dtype.FLOAT32 -> to.asFloatBuffer().put(buffer.readFloat().also { check(it.size) })
                Dtype.INT32 -> to.asIntBuffer().put(buffer.readInt().also { check(it.size) })
                Dtype.BOOL -> buffer.readBoolean().also { check(it.size) }.forEachIndexed { i, b -> to.put(i, if (b) 1 else 0) }
                Dtype.INT8, Dtype.UINT8 -> to.duplicate().put(buffer.readInt8().also { check(it.size) })
                Dtype.INT16 -> refuse()
            }
        }

        private fun refuse(): Nothing = throw RuntimeFailedException("${spec.name}: LiteRT's buffers hold no int16 in Kotlin")

        private fun check(elements: Int) {
            if (elements != spec.size) throw RuntimeFailedException("LiteRT gave $elements elements of ${spec.name}, not $spec")
        }
    }

    private companion object {
        val BYTES = setOf(Dtype.INT8, Dtype.UINT8)
    }

    private class Entry(val inputs: Map<String, Tensor>, val outputs: Map<String, Tensor>)

    private val entries = HashMap<String, Entry>()

    override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
        val expected = manifest.signatures.getValue(signature)
        check(expected.inputs, inputs)
        check(expected.outputs, outputs)
        explained("LiteRT could not run $signature") {
            val entry = entries.getOrPut(signature) { entry(signature) }
            for ((name, tensor) in entry.inputs) tensor.write(inputs.getValue(name))
            model.run(entry.inputs.mapValues { it.value.buffer }, entry.outputs.mapValues { it.value.buffer }, program.stored(signature))
            for ((name, tensor) in entry.outputs) tensor.read(outputs.getValue(name))
        }
    }

    override fun close() {
        for (entry in entries.values) (entry.inputs.values + entry.outputs.values).forEach { it.close() }
        model.close()
    }

    private fun entry(signature: String): Entry {
        val spec = manifest.signatures.getValue(signature)
        val made = ArrayList<Tensor>()
        try {
            fun tensors(specs: List<TensorSpec>, make: (String, String) -> TensorBuffer) =
                specs.associate { it.name to Tensor(it, make(it.name, program.stored(signature))).also(made::add) }
            return Entry(tensors(spec.inputs, model::createInputBuffer), tensors(spec.outputs, model::createOutputBuffer))
        } catch (error: Exception) {
            made.forEach { it.close() }
            throw error
        }
    }

    private fun check(specs: List<TensorSpec>, buffers: Map<String, ByteBuffer>) {
        require(buffers.size == specs.size) { "expected ${specs.map { it.name }}, got ${buffers.keys}" }
        for (spec in specs) {
            val buffer = requireNotNull(buffers[spec.name]) { "${spec.name} is missing" }
            require(buffer.order() == ByteOrder.nativeOrder()) { "${spec.name}: not native" }
            require(buffer.capacity() == spec.size * spec.dtype.bytes) { "${spec.name}: ${buffer.capacity()} bytes" }
            buffer.clear()
        }
    }
}

/** Does [work]; what LiteRT throws becomes a [RuntimeFailedException] that begins with [what]. */
internal fun <T> explained(what: String, work: () -> T): T =
    try {
        work()
    } catch (error: LiteRtException) {
        throw RuntimeFailedException("$what: ${lastLine(error)}", error)
    } catch (error: RuntimeException) {
        throw RuntimeFailedException("$what: ${lastLine(error)}", error)
    } catch (error: LinkageError) {
        throw RuntimeFailedException("$what: LiteRT's library is not in this app (${lastLine(error)})", error)
    }

/** LiteRT's messages begin with where in its sources they come from; the last line says what is wrong. */
private fun lastLine(error: Throwable): String =
    error.message?.lines()?.lastOrNull { it.isNotBlank() }?.trim { it.isWhitespace() || it == '└' } ?: error.toString()
