package org.pocketune.app

import java.nio.ByteBuffer
import java.util.concurrent.Semaphore
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.TrainingRuntime

/**
 * Holds a training where a test wants to see it. Without it a test would have to be quicker than the training, which
 * takes a fraction of a second, and whether it is depends on what else the machine does.
 */
class Brake {
    @Volatile private var steps = Semaphore(FREE)

    /** The next training waits after so many steps, until [release]. */
    fun holdAfter(count: Int) {
        steps = Semaphore(count)
    }

    /** Lets it do one step more. What the test asked for in the meantime takes effect between two steps. */
    fun step() = steps.release()

    fun release() = steps.release(FREE)

    fun on(factory: RuntimeFactory) = RuntimeFactory { program: Program -> Held(factory.open(program)) }

    private inner class Held(private val runtime: TrainingRuntime) : TrainingRuntime by runtime {
        override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
            if (signature == "train") steps.acquireUninterruptibly()
            runtime.run(signature, inputs, outputs)
        }
    }

    private companion object {
        const val FREE = 1 shl 24
    }
}
