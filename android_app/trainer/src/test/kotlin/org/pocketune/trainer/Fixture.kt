package org.pocketune.trainer

import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder

/** The programs that test_programs.py made. */
internal object Fixture {
    fun file(name: String) = File(System.getProperty("programs"), name)

    val stateless: Program by lazy { program("mlp-stateless") }

    fun program(name: String) = Program.open(file("$name.tflite"))

    /** A good manifest of tests/manifest. */
    fun manifest(name: String): Manifest =
        readManifest(ByteBuffer.wrap(File(System.getProperty("manifests"), "good/$name.json").readBytes()))

    val hash: String get() = stateless.manifest.graphHash

    val states by lazy { StateSpec(stateless) }

    /** A state of [stateless], all of it [value]. */
    fun tensors(value: Float): List<StoredTensor> = tensors(stateless, value)

    /** A state of a program, all of it [value]. */
    fun tensors(program: Program, value: Float): List<StoredTensor> = program.manifest.stateTensors.map {
        val bytes = ByteBuffer.allocate(it.byteSize).order(ByteOrder.LITTLE_ENDIAN)
        while (bytes.hasRemaining()) if (it.dtype == Dtype.FLOAT32) bytes.putFloat(value) else bytes.putInt(value.toInt())
        StoredTensor(it.tensor, it.dtype, it.shape, bytes.apply { clear() })
    }

    /** The number that fills a state. */
    fun valueOf(tensors: List<StoredTensor>): Float =
        tensors.single { it.name == tensors[0].name }.bytes.between(0, 4).asFloatBuffer().get(0)

    fun sample(label: Int = 0, weight: Float = 1f) = Sample(FloatArray(36) { label.toFloat() }, label, weight)

    fun samples(count: Int) = List(count) { sample(it % 4) }
}

/**
 * Stands in for a runtime: a step adds the learning rate to every number of the state; loss and accuracy are functions
 * of the state's first number. By micro-batches the learning rate is multiplied by what was accumulated, the sum of the
 * weights, which is 1 after a whole step, and where steps are split by what the gradients add up to, each of which is
 * [gradient]. Masks are 0.5. Each row of a step loses once more what the first one does. It is strict about what it is given.
 */
internal class ScriptedRuntime(
    private val manifest: Manifest,
    private val loss: (Float) -> Float = { 1 / (1 + it) },
    private val accuracy: (Float) -> Float = { it / 100 },
    private val gradient: () -> Float = { 1f },
    private val finite: () -> Float = { 0f },
    runs: Accelerator = Accelerator.NPU,
    private val onStep: (Int) -> Unit = {},
) : TrainingRuntime {
    override val report = RuntimeReport("scripted", runs, runs, "1 thread")
    private val thread = Thread.currentThread()
    private var steps = 0

    /** The state of `variables`, and one number for all its accumulators. */
    private val variables = manifest.stateTensors.associate { it.tensor to directBuffer(it.byteSize) }
    private var accumulated = 0f

    /** What each call that trains was given: the weights of its rows. */
    val weights = ArrayList<List<Float>>()
    val rates = ArrayList<Float>()
    var isClosed = false

    override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
        check(thread === Thread.currentThread() && !isClosed)
        val spec = manifest.signatures.getValue(signature)
        check(inputs.keys == spec.inputs.map { it.name }.toSet() && outputs.keys == spec.outputs.map { it.name }.toSet())
        for (tensor in spec.inputs + spec.outputs) {
            val buffer = checkNotNull(inputs[tensor.name] ?: outputs[tensor.name])
            check(buffer.isDirect && buffer.capacity() == tensor.size * 4 && buffer.order() == ByteOrder.nativeOrder())
        }
        when (signature) {
            "save" -> for ((name, to) in outputs) to.fillFrom(variables.getValue(name))
            "restore" -> {
                for ((name, from) in inputs) variables.getValue(name).fillFrom(from)
                accumulated = 0f
            }
            else -> compute(signature, spec, variables + inputs, variables + outputs)
        }
    }

    private fun compute(
        signature: String,
        spec: Signature,
        inputs: Map<String, ByteBuffer>,
        outputs: Map<String, ByteBuffer>,
    ) {
        val state = manifest.stateTensors.filter { it.dtype == Dtype.FLOAT32 }
        val value = floats(inputs.getValue(state[0].tensor))[0]
        val rate = inputs["learning_rate"]?.let { floats(it)[0] } ?: 0f
        val rows = inputs["weight"]?.let(::floats).orEmpty()
        if (signature == "accumulate") {
            onStep(steps++)
            weights += rows
            accumulated += rows.sum()
            for (each in spec.giving(Role.GRADIENT)) add(inputs.getValue(each.name), outputs.getValue(each.name), rows.sum())
        }
        if (signature == "gradients") {
            onStep(steps++)
            weights += rows
            for (each in spec.giving(Role.GRADIENT)) fill(outputs.getValue(each.name), gradient())
            // Its own state counts the calls.
            for (each in spec.giving(Role.STATE)) {
                outputs.getValue(each.name).putFloat(0, inputs.getValue(each.name).getFloat(0) + 1)
            }
        }
        if (signature == "train") {
            onStep(steps++)
            weights += rows
        }
        if (signature == manifest.updatingName) {
            rates += rate
            val gradients = spec.taking(Role.GRADIENT).flatMap { floats(inputs.getValue(it.name)) }.toSet()
            val gradient = if (signature == "train") 1f else gradients.singleOrNull() ?: accumulated
            for (each in state.filter { it.tensor in inputs }) add(inputs.getValue(each.tensor), outputs.getValue(each.tensor), rate * gradient)
            accumulated = 0f
        }
        outputs["loss"]?.putFloat(0, loss(value) * if (signature == "accumulate") rows.sum() else 1f)
        outputs["row_losses"]?.let { for (row in rows.indices) it.putFloat(4 * row, loss(value) * (row + 1)) }
        outputs["finite"]?.putFloat(0, finite())
        outputs["correct"]?.putFloat(0, accuracy(value) * rows.sum())
        for (each in spec.giving(Role.MASK)) fill(outputs.getValue(each.name), 0.5f)
        outputs["output"]?.let { for (i in 0 until it.capacity() / 4) it.putFloat(4 * i, value) }
    }

    override fun close() {
        isClosed = true
    }

    private fun fill(buffer: ByteBuffer, value: Float) {
        for (i in 0 until buffer.capacity() / 4) buffer.putFloat(4 * i, value)
    }

    /** Every number, and [term]. */
    private fun add(from: ByteBuffer, to: ByteBuffer, term: Float) {
        for (i in 0 until to.capacity() / 4) to.putFloat(4 * i, from.getFloat(4 * i) + term)
    }

    private fun floats(buffer: ByteBuffer) = buffer.duplicate().apply { clear() }.order(ByteOrder.nativeOrder())
        .asFloatBuffer().let { b -> List(b.limit()) { b.get(it) } }
}

/** A disk on which something fails. */
internal class FailingDisk(var isFull: Boolean = false) : Disk by RealDisk {
    /** What cannot be renamed. */
    var stuck: String? = null

    override fun rename(from: File, to: File) {
        if (from.name == stuck) throw IOException("Permission denied")
        RealDisk.rename(from, to)
    }

    override fun write(file: File, pieces: Sequence<ByteBuffer>) {
        // It is full in the middle of a file.
        RealDisk.write(file, if (isFull) pieces.take(1) + sequence { throw IOException("No space left on device") } else pieces)
    }
}
