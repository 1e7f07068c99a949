package org.pocketune.trainer

import java.nio.ByteBuffer

/** What a runtime is called with. The maps of an entry are made once and come back at every step. */
internal class Call(val inputs: Map<String, ByteBuffer>, val outputs: Map<String, ByteBuffer>)

/** Where the state of a program lives while it trains: one class for each export. */
internal interface Memory {
    /** The buffers of an entry, with those of the state and of the accumulators that it takes and gives. */
    fun call(entry: EntryPoint): Call

    /** Takes over the state that a training step has made; the accumulators are clear for the next one. */
    fun keep()

    /** A copy of a tensor, little-endian. */
    fun read(tensor: String): ByteArray

    /** Replaces all of it, and clears the accumulators. */
    fun write(tensors: Map<String, ByteBuffer>)
}

private fun Map<String, Port>.buffers() = mapValues { it.value.buffer }

/**
 * `variables`: the runtime keeps the state, shared by all signatures; it comes and goes through `save` and `restore`. The
 * accumulators never come out; the program clears them.
 */
internal class Variables(private val manifest: Manifest, private val runtime: TrainingRuntime) : Memory {
    private val calls = HashMap<String, Call>()
    private val tick = mapOf("tick" to directBuffer(Float.SIZE_BYTES))
    private val done = mapOf("done" to directBuffer(Float.SIZE_BYTES))

    /** Holds the state for a moment, on its way; taken when the first one passes. */
    private val passing by lazy { manifest.stateTensors.associate { it.tensor to directBuffer(it.byteSize) } }
    private var isFresh = false

    override fun call(entry: EntryPoint): Call {
        isFresh = false
        return calls.getOrPut(entry.name) { Call(entry.inputs.buffers(), entry.outputs.buffers()) }
    }

    override fun keep() = Unit

    override fun read(tensor: String): ByteArray {
        if (!isFresh) runtime.run("save", tick, passing)
        isFresh = true
        return passing.getValue(tensor).copy()
    }

    override fun write(tensors: Map<String, ByteBuffer>) {
        isFresh = false
        for ((name, buffer) in passing) buffer.fillFrom(tensors.getValue(name))
        runtime.run("restore", passing, done)
    }
}

/**
 * `stateless`: the state goes in and out of every step. Of two sets of buffers one is read and the other written; after
 * the step they change places, and nothing is copied. An accumulator has one buffer for both.
 */
internal class Arguments(private val program: Program) : Memory {
    private val tensors = program.manifest.stateTensors
    private val sets: List<Map<String, ByteBuffer>>
    private var present = 0
    private val accumulators = program.manifest.updating.taking(Role.GRADIENT)
        .associate { it.name to directBuffer(it.size * it.dtype.bytes) }
    private val calls = HashMap<String, Call>()

    init {
        val made = program.manifest.updating.giving(Role.STATE).map { it.name }.toSet()
        val first = tensors.associate { it.tensor to directBuffer(it.byteSize) }
        // What a step does not make stands in both sets.
        val second = first.mapValues { (name, buffer) -> if (name in made) directBuffer(buffer.capacity()) else buffer }
        sets = listOf(first, second)
        write(tensors.associate { it.tensor to program.initial(it) })
    }

    override fun call(entry: EntryPoint): Call = calls.getOrPut("${entry.name} $present") {
        val signature = program.manifest.signatures.getValue(entry.name)
        val inputs = signature.taking(Role.STATE).associate { it.name to sets[present].getValue(it.name) }
        val outputs = signature.giving(Role.STATE).associate { it.name to sets[1 - present].getValue(it.name) }
        fun accumulators(specs: List<TensorSpec>) = specs.associate { it.name to accumulators.getValue(it.name) }
        Call(
            entry.inputs.buffers() + inputs + accumulators(signature.taking(Role.GRADIENT)),
            entry.outputs.buffers() + outputs + accumulators(signature.giving(Role.GRADIENT)),
        )
    }

    override fun keep() {
        present = 1 - present
        clearAccumulators()
    }

    override fun read(tensor: String): ByteArray = sets[present].getValue(tensor).copy()

    override fun write(tensors: Map<String, ByteBuffer>) {
        for ((name, buffer) in sets[present]) buffer.fillFrom(tensors.getValue(name))
        clearAccumulators()
    }

    private fun clearAccumulators() = accumulators.values.forEach { it.zero() }
}
