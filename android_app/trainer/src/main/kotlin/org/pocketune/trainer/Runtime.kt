package org.pocketune.trainer

import java.nio.ByteBuffer

/** Where the user or app would like a program to run. */
enum class Accelerator { CPU, GPU, NPU }

/**
 * What really runs, for the user to see.
 *
 * @property runtime name and version of the library.
 * @property asked what was preferred.
 * @property runs what does the work now.
 * @property detail threads, delegate.
 * @property fallback why it is not what was asked; null when it is.
 */
data class RuntimeReport(
    val runtime: String,
    val asked: Accelerator,
    val runs: Accelerator,
    val detail: String,
    val fallback: String? = null,
)

/**
 * A program loaded in an inference runtime. The [Trainer] makes it, calls it and closes it on one thread of its own, and
 * never while a call runs; an implementation needs no locks.
 */
interface TrainingRuntime : AutoCloseable {
    /** What really runs. */
    val report: RuntimeReport

    /**
     * Runs a signature.
     *
     * @param signature its name in the manifest.
     * @param inputs every input: a direct buffer in native order of exactly its size, read from its start to its end
     *   whatever its position. The same objects come back at every call.
     * @param outputs every output likewise; written. What is in and out under the role `gradient` has one buffer for both:
     *   it is read before it is written.
     * @throws RuntimeFailedException the runtime gave up.
     */
    fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>)
}

/** Makes runtimes; one per kind of runtime is all that a module for it needs. */
fun interface RuntimeFactory {
    /**
     * Loads a program, on the thread that will use it.
     *
     * @throws RuntimeFailedException the runtime does not take it.
     */
    fun open(program: Program): TrainingRuntime
}
