package org.pocketune.runtime.litert

import com.google.ai.edge.litert.Accelerator
import com.google.ai.edge.litert.CompiledModel
import com.google.ai.edge.litert.LiteRtException
import com.google.ai.edge.litert.Native
import com.google.ai.edge.litert.NativeBuffer
import com.google.ai.edge.litert.NativeModel
import com.google.ai.edge.litert.Status
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.round
import kotlin.math.withSign
import org.tensorflow.lite.DataType
import org.tensorflow.lite.Interpreter
import org.tensorflow.lite.Tensor

/**
 * LiteRT's native side as it was measured on a host, with TFLite's library to compute. An NPU rounds what it gives to half
 * precision.
 *
 * @property found what `getAvailableAccelerators` says.
 * @property leftOver whether an accelerator leaves operators over, which are refused without the CPU.
 * @property takes whether the NPU computes anything when the CPU is there too.
 * @property spoil changes a loss of an accelerator.
 */
internal class FakeLitert(
    private val found: Set<Accelerator> = setOf(Accelerator.CPU),
    private val leftOver: Set<Accelerator> = emptySet(),
    private val takes: Boolean = true,
    private val spoil: (Float) -> Float = { it },
) : Native {
    /** What is open: models and buffers. */
    var open = 0

    val paths = ArrayList<String>()

    /** What each model was compiled for, and in which precision on a GPU. */
    val compiled = ArrayList<Pair<Set<Accelerator>, CompiledModel.GpuOptions.Precision?>>()

    override fun accelerators() = found

    override fun compile(path: String, accelerators: Set<Accelerator>, options: CompiledModel.Options): NativeModel {
        if (Accelerator.CPU !in accelerators && accelerators.any { it in leftOver }) {
            throw LiteRtException(Status.ErrorCompilation, "ERROR: [compiled_model.cc:1036]\n└ Some ops are not accelerated.")
        }
        compiled += accelerators to options.gpuOptions?.precision
        paths += path
        val interpreter =
            try {
                Interpreter(File(path), Interpreter.Options().setNumThreads(options.cpuOptions?.numThreads ?: 1))
            } catch (error: IllegalArgumentException) {
                throw LiteRtException(Status.ErrorRuntimeFailure, error.message.orEmpty())
            }
        open++
        val isHalf = Accelerator.NPU in accelerators && takes
        return Model(interpreter, isHalf, isOther = accelerators != setOf(Accelerator.CPU))
    }

    private inner class Model(
        private val interpreter: Interpreter,
        private val isHalf: Boolean,
        private val isOther: Boolean,
    ) : NativeModel {
        override fun inputBuffer(name: String, signature: String) =
            buffer(name, signature, interpreter.getSignatureInputs(signature)) {
                interpreter.getInputTensorFromSignature(it, signature)
            }

        override fun outputBuffer(name: String, signature: String) =
            buffer(name, signature, interpreter.getSignatureOutputs(signature)) {
                interpreter.getOutputTensorFromSignature(it, signature)
            }

        private fun buffer(name: String, signature: String, names: Array<String>, tensor: (String) -> Tensor): Buffer {
            if (name !in names) throw LiteRtException(Status.ErrorNotFound, "└ tensor not found: $name in $signature")
            val found = tensor(name)
            open++
            return Buffer(found.dataType(), found.numElements())
        }

        /** Without a word about inputs that are missing. */
        override fun run(signature: String, inputs: Map<String, NativeBuffer>, outputs: Map<String, NativeBuffer>) {
            val all = interpreter.getSignatureInputs(signature).associateWith { name ->
                val given = inputs[name] as Buffer?
                given?.bytes ?: interpreter.getInputTensorFromSignature(name, signature).run { ByteBuffer.allocateDirect(numBytes()) }
            }
            val given = outputs.mapValues { (_, buffer) -> (buffer as Buffer).bytes.also { it.clear() } }
            all.values.forEach { it.clear() }
            interpreter.runSignature(all, given, signature)
            if (isHalf) outputs.values.forEach { (it as Buffer).round() }
            if (isOther) given["loss"]?.let { it.putFloat(0, spoil(it.getFloat(0))) }
        }

        override fun close() {
            interpreter.close()
            open--
        }
    }

    /** New ones hold anything. */
    private inner class Buffer(private val type: DataType, private val size: Int) : NativeBuffer {
        val bytes: ByteBuffer = ByteBuffer.allocateDirect(size * type.byteSize()).order(ByteOrder.nativeOrder())
            .apply { repeat(capacity()) { put(it, 0x7b) } }

        /** Takes what is too short. */
        override fun write(array: Any) {
            bytes.clear()
            val length = java.lang.reflect.Array.getLength(array)
            if (length > size) throw LiteRtException(Status.ErrorRuntimeFailure, "source buffer is larger than the tensor buffer")
            when (array) {
                is FloatArray -> bytes.asFloatBuffer().put(array)
                is IntArray -> bytes.asIntBuffer().put(array)
                is BooleanArray -> array.forEachIndexed { i, b -> bytes.put(i, if (b) 1 else 0) }
                else -> error("no such write")
            }
        }

        override fun read(): Any {
            bytes.clear()
            return when (type) {
                DataType.FLOAT32 -> FloatArray(size).also { bytes.asFloatBuffer().get(it) }
                DataType.INT32 -> IntArray(size).also { bytes.asIntBuffer().get(it) }
                DataType.BOOL -> BooleanArray(size) { bytes.get(it) != 0.toByte() }
                else -> error("no such read")
            }
        }

        fun round() {
            if (type == DataType.FLOAT32) repeat(size) { bytes.putFloat(4 * it, half(bytes.getFloat(4 * it))) }
        }

        override fun close() {
            open--
        }
    }
}

/** The nearest number of half precision; values above its end are held at twice that, as an NPU does. */
internal fun half(value: Float): Float {
    if (value.isNaN() || value == 0f) return value
    val exponent = maxOf(Math.getExponent(value), -14)
    val step = Math.scalb(1f, exponent - 10)
    val rounded = round(value / step) * step
    return if (kotlin.math.abs(rounded) > 65504f) 131008f.withSign(value) else rounded
}
