package org.pocketune.runtime.tflite

import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.RuntimeReport
import org.pocketune.trainer.TensorSpec
import org.pocketune.trainer.TrainingRuntime
import org.tensorflow.lite.DataType
import org.tensorflow.lite.Delegate
import org.tensorflow.lite.Interpreter
import org.tensorflow.lite.Tensor

/**
 * A program in TFLite's interpreter. The library takes missing inputs, buffers that are too large and other byte orders
 * without a word, so all of that is checked here.
 *
 * @throws RuntimeFailedException the signatures in the file are not those of the manifest.
 */
internal class TfliteRuntime(
    private val interpreter: Interpreter,
    private val delegate: Delegate?,
    private val program: Program,
    override val report: RuntimeReport,
) : TrainingRuntime {
    private val manifest = program.manifest

    init {
        val keys = interpreter.signatureKeys.toSet()
        for ((own, signature) in manifest.signatures) {
            val name = program.stored(own)
            if (name !in keys) refuse("it has no signature $name")
            check(name, interpreter.getSignatureInputs(name), signature.inputs) {
                interpreter.getInputTensorFromSignature(it, name)
            }
            check(name, interpreter.getSignatureOutputs(name), signature.outputs) {
                interpreter.getOutputTensorFromSignature(it, name)
            }
        }
    }

    override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
        val expected = manifest.signatures.getValue(signature)
        check(expected.inputs, inputs)
        check(expected.outputs, outputs)
        try {
            interpreter.runSignature(inputs, outputs, program.stored(signature))
        } catch (error: RuntimeException) {
            throw RuntimeFailedException("TFLite could not run $signature: ${lastLine(error)}", error)
        }
    }

    /** Runs [signatures] once on zeros. Throws [RuntimeFailedException]. Not for a program with variables. */
    fun tryOut(signatures: Collection<String>) = signatures.forEach { name ->
        val signature = manifest.signatures.getValue(name)
        run(name, buffers(signature.inputs), buffers(signature.outputs))
    }

    override fun close() {
        interpreter.close()
        delegate?.close()
    }

    private fun buffers(specs: List<TensorSpec>) = specs.associate {
        it.name to ByteBuffer.allocateDirect(it.size * it.dtype.bytes).order(ByteOrder.nativeOrder())
    }

    private fun check(specs: List<TensorSpec>, buffers: Map<String, ByteBuffer>) {
        require(buffers.size == specs.size) { "expected ${specs.map { it.name }}, got ${buffers.keys}" }
        for (spec in specs) {
            val buffer = requireNotNull(buffers[spec.name]) { "${spec.name} is missing" }
            require(buffer.isDirect && buffer.order() == ByteOrder.nativeOrder()) { "${spec.name}: not direct, native" }
            require(buffer.capacity() == spec.size * spec.dtype.bytes) { "${spec.name}: ${buffer.capacity()} bytes" }
            buffer.clear()
        }
    }

    private fun check(signature: String, names: Array<String>, specs: List<TensorSpec>, tensor: (String) -> Tensor) {
        if (names.toSet() != specs.map { it.name }.toSet()) refuse("$signature has ${names.toList()}")
        for (spec in specs) {
            val found = tensor(spec.name)
            if (found.shape().toList() != spec.shape || found.dataType() != spec.dtype.type) {
                refuse("$signature.${spec.name} is ${found.dataType()} ${found.shape().toList()}, not $spec")
            }
        }
    }

    private fun refuse(problem: String): Nothing =
        throw RuntimeFailedException("the program is not what its manifest says: $problem")
}

private val Dtype.type: DataType
    get() = when (this) {
        Dtype.FLOAT32 -> DataType.FLOAT32
        Dtype.INT32 -> DataType.INT32
        Dtype.BOOL -> DataType.BOOL
        Dtype.INT8 -> DataType.INT8
        Dtype.UINT8 -> DataType.UINT8
        Dtype.INT16 -> DataType.INT16
    }

/** TFLite's messages carry those before them; the last line is about this error. */
internal fun lastLine(error: Throwable): String =
    error.message?.lines()?.lastOrNull { it.isNotBlank() }?.trim() ?: error.toString()
