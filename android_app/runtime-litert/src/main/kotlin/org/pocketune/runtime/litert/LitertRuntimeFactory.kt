package org.pocketune.runtime.litert

import com.google.ai.edge.litert.CompiledModel
import com.google.ai.edge.litert.Environment
import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.nio.ByteBuffer
import org.pocketune.trainer.Accelerator
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.RuntimeReport
import org.pocketune.trainer.SplitRuntime
import org.pocketune.trainer.StateKind
import org.pocketune.trainer.TrainingRuntime
import com.google.ai.edge.litert.Accelerator as Hardware

/**
 * Runs programs in LiteRT 2's `CompiledModel`.
 *
 * @property directory of the app's own, such as its `cacheDir`: LiteRT opens programs by path, so they are copied there.
 * @property preference what to try, in order; the CPU comes last of itself. The runtime's report says what it became, and
 *   why nothing before it.
 * @property threads cores that a step on the CPU may use. LiteRT 2.3.0 gives them to XNNPACK alone (seen in its Python
 *   package) and runs its own kernels, as depthwise convolutions whose filters train, on one: there the interpreter
 *   (`TfliteRuntimeFactory`) is quicker.
 * @property npuLibraries the folder of the NPU's libraries, as `applicationInfo.nativeLibraryDir`; null where the app has
 *   none.
 * @property compiled the program as it was compiled ahead of time for the NPU of this phone, which runs that in its place.
 */
class LitertRuntimeFactory(
    private val directory: File,
    private val preference: List<Accelerator> = listOf(Accelerator.NPU, Accelerator.GPU),
    private val threads: Int = 1,
    private val npuLibraries: File? = null,
    private val compiled: ByteBuffer? = null,
) : RuntimeFactory {
    override fun open(program: Program): TrainingRuntime {
        val file = copied(program.data, "${program.digest}.tflite")
        val forNpu = compiled?.let { copied(it.duplicate(), "${program.digest}.npu.tflite") } ?: file
        val environment = explained("LiteRT does not start", ::environment)
        return try {
            WithEnvironment(Opening(program, file, forNpu, environment).first(), environment)
        } catch (error: Throwable) {
            environment.close()
            throw error
        }
    }

    private fun environment(): Environment {
        val folder = npuLibraries?.path ?: return Environment.create()
        return Environment.create(
            mapOf(
                Environment.Option.DispatchLibraryDir to folder,
                Environment.Option.CompilerPluginLibraryDir to folder,
            ),
        )
    }

    /** A file with the very bytes that were checked. One that another runtime has mapped stays as it is. */
    private fun copied(bytes: ByteBuffer, name: String): File {
        val file = File(directory, name)
        try {
            directory.mkdirs()
            val partial = File.createTempFile("program", ".partial", directory)
            FileOutputStream(partial).use { while (bytes.hasRemaining()) it.channel.write(bytes) }
            if (!partial.renameTo(file)) throw IOException("$partial cannot be renamed")
        } catch (error: IOException) {
            throw RuntimeFailedException("LiteRT opens programs by path, and $file cannot be written: ${error.message}", error)
        }
        return file
    }

    /** One program, on one accelerator after the other. */
    private inner class Opening(
        private val program: Program,
        private val file: File,
        private val forNpu: File,
        private val environment: Environment,
    ) {
        private val manifest = program.manifest
        private val refused = ArrayList<String>()

        /** The first that takes it. */
        fun first(): TrainingRuntime {
            for (accelerator in preference.takeWhile { it != Accelerator.CPU }.distinct()) {
                try {
                    return on(accelerator)
                } catch (error: RuntimeFailedException) {
                    refused += "$accelerator: ${error.message}"
                }
            }
            return onCpu()
        }

        private fun onCpu(): LitertRuntime {
            val options = CompiledModel.Options(Hardware.CPU)
            options.cpuOptions = CompiledModel.CpuOptions(numThreads = threads)
            return load(options, Accelerator.CPU, if (threads == 1) "1 thread" else "$threads threads")
        }

        private fun on(accelerator: Accelerator): TrainingRuntime {
            if (manifest.state == StateKind.VARIABLES) {
                throw RuntimeFailedException("this program keeps its state in variables: build it stateless or split")
            }
            if (accelerator == Accelerator.NPU && manifest.state != StateKind.SPLIT) {
                throw RuntimeFailedException("half precision loses the small updates of a whole step: build it split")
            }
            val hardware = Hardware.valueOf(accelerator.name)
            if (hardware !in explained("LiteRT") { environment.getAvailableAccelerators() }) {
                throw RuntimeFailedException("LiteRT finds none on this device")
            }
            val exact = onCpu()
            var accelerated: LitertRuntime? = null
            try {
                accelerated = accelerated(accelerator, hardware)
                Probe(program).compare(accelerated, exact)
                if (manifest.state == StateKind.SPLIT) return SplitRuntime(accelerated, exact)
                exact.close()
                return accelerated
            } catch (error: RuntimeFailedException) {
                accelerated?.close()
                exact.close()
                throw error
            }
        }

        /**
         * All of it, or of an NPU also a part: what is compiled ahead of time may leave signatures to the CPU. LiteRT adds
         * the CPU to an NPU that is asked for alone; with NONE beside it, it stays alone, and what is left over is refused.
         */
        private fun accelerated(accelerator: Accelerator, hardware: Hardware): LitertRuntime {
            val whole = CompiledModel.Options(hardware, Hardware.NONE)
            // Not that of LiteRT's choice: the updates of training vanish in half precision.
            whole.gpuOptions = CompiledModel.GpuOptions(precision = CompiledModel.GpuOptions.Precision.FP32)
            if (accelerator == Accelerator.GPU) return load(whole, accelerator, "whole, in float32")
            return try {
                load(whole, accelerator, "whole, in half precision")
            } catch (_: RuntimeFailedException) {
                val part = CompiledModel.Options(hardware)
                load(part, accelerator, "in half precision; LiteRT does not say how much, and the rest runs on the CPU")
            }
        }

        private fun load(options: CompiledModel.Options, runs: Accelerator, detail: String): LitertRuntime {
            val asked = preference.firstOrNull() ?: Accelerator.CPU
            val fallback = refused.joinToString("; ").ifEmpty { null }
            val report = RuntimeReport("LiteRT", asked, runs, detail, fallback)
            val path = (if (runs == Accelerator.NPU) forNpu else file).path
            val model = explained("LiteRT does not take the program") { CompiledModel.create(path, options, environment) }
            return LitertRuntime(model, program, report)
        }
    }
}

/** A runtime, and what must be closed after it. */
private class WithEnvironment(private val runtime: TrainingRuntime, private val environment: Environment) :
    TrainingRuntime by runtime {
    override fun close() {
        runtime.close()
        environment.close()
    }
}
