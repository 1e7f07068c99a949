package org.pocketune.app

import java.io.File
import java.io.FileOutputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.channels.FileChannel
import kotlinx.coroutines.flow.update
import org.pocketune.app.core.UiState
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.TrainingRuntime

/** The app with the real TFLite library, on this JVM; [recorder] writes down what it is given to learn, [brake] holds it. */
class TestApp : PocketuneApp() {
    val recorder = Recorder()
    val brake = Brake()

    /** As if the presenter had said so. */
    fun pretend(change: (UiState) -> UiState) = shown.update(change)

    override val runtime: RuntimeFactory
        get() = brake.on { program -> recorder.Recorded(real.open(program), program) }

    companion object {
        /** The real library, after what it needs from Android was loaded. */
        val real: RuntimeFactory by lazy {
            for (name in listOf("libc", "libm", "libdl", "liblog")) {
                System.load(File(System.getProperty("natives"), "$name.so").absolutePath)
            }
            TfliteRuntimeFactory()
        }
    }
}

/** All steps of training: each input and output as the runtime got it, one after the other. */
class Recorder {
    @Volatile var file: File? = null

    inner class Recorded(private val runtime: TrainingRuntime, private val program: Program) : TrainingRuntime by runtime {
        override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
            runtime.run(signature, inputs, outputs)
            val to = file ?: return
            if (signature != "train") return
            val tensors = program.manifest.step.run { this.inputs.map { inputs.getValue(it.name) } + outputs.getValue("loss") }
            FileOutputStream(to, true).channel.use { channel -> tensors.forEach { channel.append(it) } }
        }

        private fun FileChannel.append(tensor: ByteBuffer) {
            check(ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN)
            write(tensor.duplicate().also { it.clear() })
        }
    }
}
