package org.pocketune.runtime.litert

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Random
import kotlin.math.abs
import org.pocketune.trainer.Accelerator
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.Program
import org.pocketune.trainer.Role
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.TensorSpec
import org.pocketune.trainer.TrainingRuntime

/**
 * One step of the built state, on rows made up, before an accelerator is trusted. Engines have been seen to report a
 * program as taken whole and to compute another loss, and LiteRT does not tell an NPU that took nothing from one that took
 * all. It is no certificate: that comes from the host.
 */
internal class Probe(private val program: Program) {
    private val manifest = program.manifest

    /** Throws [RuntimeFailedException] when [accelerated] gives another loss than [exact], or has computed nothing itself. */
    fun compare(accelerated: TrainingRuntime, exact: TrainingRuntime) {
        // Every signature once: some refusals come only then.
        val found = manifest.accelerated.associateWith { run(it, accelerated) }.getValue(manifest.storedStepName)
        val expected = run(manifest.storedStepName, exact)
        val (loss, right) = listOf(found, expected).map { it.getValue("loss").getFloat(0) }
        if (right.isFinite() && !(abs(loss - right) <= MOST_OFF * maxOf(1f, abs(right)))) {
            throw RuntimeFailedException("it computes a loss of $loss where the CPU has $right: certify the program on the host")
        }
        if (accelerated.report.runs == Accelerator.NPU && found == expected) {
            throw RuntimeFailedException("it computes to the last bit what the CPU does, so nothing of the program runs there")
        }
    }

    private fun run(name: String, runtime: TrainingRuntime): Map<String, ByteBuffer> {
        val signature = manifest.signatures.getValue(name)
        val outputs = signature.outputs.associate { it.name to buffer(it) }
        runtime.run(name, signature.inputs.associate { it.name to madeUp(it) }, outputs)
        return outputs.onEach { it.value.clear() }
    }

    private fun madeUp(spec: TensorSpec): ByteBuffer {
        val buffer = buffer(spec)
        when (spec.role) {
            Role.STATE -> buffer.put(initial(spec.name)).clear()
            Role.WEIGHT -> repeat(spec.size) { buffer.putFloat(4 * it, 1f) }
            Role.LEARNING_RATE -> buffer.putFloat(0, RATE)
            Role.INPUT, Role.TARGET ->
                if (spec.dtype == Dtype.FLOAT32) {
                    val random = Random(spec.name.hashCode().toLong())
                    repeat(spec.size) { buffer.putFloat(4 * it, random.nextFloat()) }
                }
            else -> Unit
        }
        return buffer
    }

    private fun initial(tensor: String): ByteBuffer =
        program.initial(manifest.stateTensors.single { it.tensor == tensor }).duplicate().apply { clear() }

    private fun buffer(spec: TensorSpec): ByteBuffer =
        ByteBuffer.allocateDirect(spec.size * spec.dtype.bytes).order(ByteOrder.nativeOrder())

    private companion object {
        /** Half precision is off by a few thousandths. */
        const val MOST_OFF = 0.05f
        const val RATE = 0.01f
    }
}
