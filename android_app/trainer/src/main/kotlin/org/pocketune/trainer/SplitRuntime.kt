package org.pocketune.trainer

import java.nio.ByteBuffer

/**
 * Runs a program with [StateKind.SPLIT] on two engines: what updates in float32 on [exact], all else on [accelerated],
 * which may round to half precision.
 */
class SplitRuntime(private val accelerated: TrainingRuntime, private val exact: TrainingRuntime) : TrainingRuntime {
    override val report: RuntimeReport =
        accelerated.report.run { copy(detail = "$detail; updates in float32 on the CPU: ${exact.report.detail}") }

    override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) =
        (if (signature == UPDATE) exact else accelerated).run(signature, inputs, outputs)

    override fun close() {
        accelerated.close()
        exact.close()
    }
}
