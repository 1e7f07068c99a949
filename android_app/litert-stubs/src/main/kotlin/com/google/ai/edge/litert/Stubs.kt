/*
 * The part of LiteRT's Kotlin library that runtime-litert uses: names, parameters and what is said of them, as in
 * google-ai-edge/LiteRT at f67457790c9c (August 2026), litert/kotlin/src/main. Everything goes to a Native of the tests.
 */
package com.google.ai.edge.litert

/** What the tests put in the place of the library's native side. */
interface Native {
    fun accelerators(): Set<Accelerator>

    /** Compiles a file for [accelerators]; throws [LiteRtException]. */
    fun compile(path: String, accelerators: Set<Accelerator>, options: CompiledModel.Options): NativeModel

    companion object {
        @Volatile var current: Native? = null
    }
}

/** A compiled file; handles of buffers are whatever it likes. */
interface NativeModel : AutoCloseable {
    fun inputBuffer(name: String, signature: String): NativeBuffer

    fun outputBuffer(name: String, signature: String): NativeBuffer

    fun run(signature: String, inputs: Map<String, NativeBuffer>, outputs: Map<String, NativeBuffer>)
}

/** The elements are an array of their type. */
interface NativeBuffer : AutoCloseable {
    fun write(array: Any)

    fun read(): Any
}

private fun native() = Native.current ?: throw UnsatisfiedLinkError("no litert_jni in java.library.path")

enum class Accelerator { NONE, CPU, GPU, NPU }

enum class Status { ErrorRuntimeFailure, ErrorNotFound, ErrorCompilation }

class LiteRtException(status: Status, message: String) : Exception(message) {
    val status = status
}

/** After it was closed every call throws IllegalStateException; to close it twice is fine. */
abstract class JniHandle internal constructor() : AutoCloseable {
    private var isClosed = false

    protected fun assertNotDestroyed() = check(!isClosed) { "The handle has been destroyed." }

    protected abstract fun destroy()

    final override fun close() {
        if (!isClosed) destroy()
        isClosed = true
    }
}

class Environment private constructor() : JniHandle() {
    enum class Option { CompilerPluginLibraryDir, DispatchLibraryDir }

    /** Those that LiteRT has found. */
    fun getAvailableAccelerators(): Set<Accelerator> {
        assertNotDestroyed()
        return native().accelerators()
    }

    override fun destroy() = Unit

    companion object {
        @JvmStatic @JvmOverloads
        fun create(@Suppress("UNUSED_PARAMETER") options: Map<Option, String> = mapOf()): Environment {
            native()
            return Environment()
        }
    }
}

class TensorBuffer internal constructor(internal val buffer: NativeBuffer) : JniHandle() {
    fun writeInt(data: IntArray) = write(data)

    fun writeFloat(data: FloatArray) = write(data)

    fun writeBoolean(data: BooleanArray) = write(data)

    fun writeInt8(data: ByteArray) = write(data)

    fun readInt() = read() as IntArray

    fun readFloat() = read() as FloatArray

    fun readBoolean() = read() as BooleanArray

    fun readInt8() = read() as ByteArray

    override fun destroy() = buffer.close()

    private fun write(array: Any) {
        assertNotDestroyed()
        buffer.write(array)
    }

    private fun read(): Any {
        assertNotDestroyed()
        return buffer.read()
    }
}

class CompiledModel private constructor(private val model: NativeModel) : JniHandle() {
    data class CpuOptions(
        val numThreads: Int? = null,
        val xnnPackFlags: Int? = null,
        val xnnPackWeightCachePath: String? = null,
    )

    data class GpuOptions(val precision: Precision? = null) {
        enum class Precision { DEFAULT, FP16, FP32, FP16_WITH_FP32_ACCUM }
    }

    class Options(internal val accelerators: Set<Accelerator>) {
        constructor(vararg accelerators: Accelerator) : this(setOf(*accelerators))

        var cpuOptions: CpuOptions? = null
        var gpuOptions: GpuOptions? = null
    }

    fun createInputBuffer(inputName: String, signature: String = ""): TensorBuffer {
        assertNotDestroyed()
        return TensorBuffer(model.inputBuffer(inputName, signature))
    }

    fun createOutputBuffer(outputName: String, signature: String = ""): TensorBuffer {
        assertNotDestroyed()
        return TensorBuffer(model.outputBuffer(outputName, signature))
    }

    fun run(inputs: Map<String, TensorBuffer>, outputs: Map<String, TensorBuffer>, signature: String = "") {
        assertNotDestroyed()
        model.run(signature, inputs.mapValues { it.value.buffer }, outputs.mapValues { it.value.buffer })
    }

    override fun destroy() = model.close()

    companion object {
        /** The NPU alone is given the CPU besides. */
        @JvmStatic
        fun create(filePath: String, options: Options, optionalEnv: Environment? = null): CompiledModel {
            val npuAlone = options.accelerators == setOf(Accelerator.NPU)
            val accelerators = if (npuAlone) options.accelerators + Accelerator.CPU else options.accelerators
            checkNotNull(optionalEnv)
            return CompiledModel(native().compile(filePath, accelerators - Accelerator.NONE, options))
        }
    }
}
