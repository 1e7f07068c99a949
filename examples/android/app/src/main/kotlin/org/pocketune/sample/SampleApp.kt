package org.pocketune.sample

import android.app.Application
import java.io.File
import java.io.FileInputStream
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Deferred
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.async
import org.pocketune.trainer.Program

/** Holds the model, which outlives the windows. */
class SampleApp : Application() {
    /** Of all that lives as long as the process. */
    val scope = MainScope()

    /** Opened when it is first asked for. */
    val learner: Deferred<Learner> = scope.async(start = CoroutineStart.LAZY) {
        val program = assets.openFd("model.tflite").use { // mapped, not read
            Program.open(FileInputStream(it.fileDescriptor).channel, it.startOffset, it.length)
        }
        Learner.open(program, File(filesDir, "pocketune"))
    }
}
