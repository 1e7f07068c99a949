package org.pocketune.runtime.tflite

import org.pocketune.trainer.Accelerator
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.RuntimeReport
import org.pocketune.trainer.SplitRuntime
import org.pocketune.trainer.StateKind
import org.pocketune.trainer.TrainingRuntime
import org.tensorflow.lite.Delegate
import org.tensorflow.lite.Interpreter
import org.tensorflow.lite.TensorFlowLite

/** A delegate to try; the exception or linkage error of [make] says why there is none. */
internal fun interface DelegateMaker {
    fun make(): Delegate
}

/**
 * Runs programs in TFLite's Android library.
 *
 * @property accelerator what is preferred; the runtime's report says what it became, and why.
 * @property threads cores that a step may use.
 * @property xnnpack the fast kernels for the CPU; off runs the library's own, which is slower and good for comparing.
 */
class TfliteRuntimeFactory internal constructor(
    private val accelerator: Accelerator,
    private val threads: Int,
    private val xnnpack: Boolean,
    private val gpu: DelegateMaker,
) : RuntimeFactory {
    constructor(accelerator: Accelerator = Accelerator.CPU, threads: Int = 1, xnnpack: Boolean = true) :
        this(accelerator, threads, xnnpack, DelegateMaker(::gpuDelegate))

    override fun open(program: Program): TrainingRuntime {
        if (accelerator == Accelerator.CPU) return onCpu(program, null)
        if (accelerator == Accelerator.NPU) return onCpu(program, "TensorFlow Lite has no delegate for this NPU: use LiteRT")
        if (program.manifest.state == StateKind.VARIABLES) {
            return onCpu(program, "this program keeps its state in variables, which no delegate runs: build it stateless")
        }
        return try {
            onGpu(program)
        } catch (error: RuntimeFailedException) {
            onCpu(program, error.message)
        }
    }

    private fun onCpu(program: Program, fallback: String?): TrainingRuntime {
        val kernels = if (xnnpack) "XNNPACK" else "the library's own kernels"
        val cores = if (threads == 1) "1 thread" else "$threads threads"
        val report = report(Accelerator.CPU, "$kernels, $cores", fallback)
        return load(program, null, report)
    }

    /** Throws RuntimeFailedException when any signature does not run there. */
    private fun onGpu(program: Program): TrainingRuntime {
        val delegate =
            try {
                gpu.make()
            } catch (error: RuntimeException) {
                throw RuntimeFailedException(lastLine(error), error)
            } catch (error: LinkageError) {
                throw RuntimeFailedException("the GPU library is not in this app (${lastLine(error)})", error)
            }
        // The Java library does not say how many operators the delegate took; what it left runs on the CPU.
        val report = report(Accelerator.GPU, "GPU delegate; operators it does not know run on the CPU", null)
        val runtime = load(program, delegate, report)
        try {
            // Some refusals come only when a signature first runs. Nothing is kept: the state goes in and out.
            runtime.tryOut(program.manifest.accelerated)
            return if (program.manifest.state == StateKind.SPLIT) SplitRuntime(runtime, onCpu(program, null)) else runtime
        } catch (error: RuntimeFailedException) {
            runtime.close()
            throw error
        }
    }

    private fun load(program: Program, delegate: Delegate?, report: RuntimeReport): TfliteRuntime {
        var interpreter: Interpreter? = null
        try {
            val options = Interpreter.Options().setNumThreads(threads).setUseXNNPACK(xnnpack)
            delegate?.let(options::addDelegate)
            interpreter = Interpreter(program.data, options)
            return TfliteRuntime(interpreter, delegate, program, report)
        } catch (error: RuntimeException) {
            interpreter?.close()
            delegate?.close()
            throw error as? RuntimeFailedException
                ?: RuntimeFailedException("TFLite does not take the program: ${lastLine(error)}", error)
        }
    }

    private fun report(runs: Accelerator, detail: String, fallback: String?) =
        RuntimeReport("TensorFlow Lite ${TensorFlowLite.runtimeVersion()}", accelerator, runs, detail, fallback)
}
