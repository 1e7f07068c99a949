package org.pocketune.trainer

import java.nio.ByteBuffer

/**
 * Stands before a runtime that another thread may have closed while a training waited for its collector: every call
 * then throws [ClosedException].
 */
internal class WhileOpen(private val runtime: TrainingRuntime, private val owner: Owner) : TrainingRuntime by runtime {
    override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
        owner.checkOpen()
        runtime.run(signature, inputs, outputs)
    }
}
