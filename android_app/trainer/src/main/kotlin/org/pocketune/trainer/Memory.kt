package org.pocketune.trainer

import java.nio.ByteBuffer
import java.util.TreeMap

/** What a runtime is called with. The maps of an entry are made once and come back at every step. */
internal class Call(val inputs: Map<String, ByteBuffer>, val outputs: Map<String, ByteBuffer>)

/** Where the state of a program lives while it trains: one class for each export. */
internal interface Memory {
    /**
     * Whether the state is that a call of the signature that updates has made. It is looked at where an operation of the
     * program can be infinite at finite numbers; else it is taken for finite.
     */
    fun isFinite(entry: EntryPoint): Boolean

    /** The buffers of an entry, with those of the state and of the gradients that it takes and gives. */
    fun call(entry: EntryPoint): Call

    /**
     * Takes over what a call of a training step has made: a new state, or gradients. After the one that updates, there
     * are no gradients.
     *
     * @param share of the weight of the step, of the rows whose gradients these are.
     * @throws DivergedException a gradient is larger than what computed it can say.
     */
    fun keep(entry: EntryPoint, share: Float)

    /** A copy of a tensor, little-endian. */
    fun read(tensor: String): ByteArray

    /** Replaces all of it, and clears the gradients. */
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
        return calls.getOrPut(entry.name) { Call(entry.taken.buffers(), entry.outputs.buffers()) }
    }

    override fun isFinite(entry: EntryPoint) = entry.outputs["finite"]?.get()?.isFinite() ?: true

    override fun keep(entry: EntryPoint, share: Float) = Unit

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
 * `stateless`, `split`: the state goes in and out of the calls of a step. Of two buffers of a tensor one is read and the
 * other written; after the call they change places, and nothing is copied.
 *
 * @param isHalf whether gradients come in half precision.
 */
internal class Arguments(private val program: Program, isHalf: Boolean) : Memory {
    private val manifest = program.manifest

    /** A tensor of the state. What no call makes has one buffer in both roles. */
    private class Place(var read: ByteBuffer, var written: ByteBuffer)

    private val places: Map<String, Place>

    /** The signatures that make state, and whether what each makes is in the other place just now. */
    private val turned = TreeMap<String, Boolean>()
    private val gradients = Gradients(manifest, isHalf)
    private val calls = HashMap<String, Call>()

    init {
        val making = manifest.signatures.filterValues { it.giving(Role.STATE).isNotEmpty() }
        making.keys.associateWithTo(turned) { false }
        val made = making.values.flatMap { signature -> signature.giving(Role.STATE).map { it.name } }.toSet()
        places = manifest.stateTensors.associate {
            val buffer = directBuffer(it.byteSize)
            it.tensor to Place(buffer, if (it.tensor in made) directBuffer(it.byteSize) else buffer)
        }
        write(manifest.stateTensors.associate { it.tensor to program.initial(it) })
    }

    override fun call(entry: EntryPoint): Call = calls.getOrPut("${entry.name} ${turned.values}") {
        val signature = manifest.signatures.getValue(entry.called)
        Call(
            entry.taken.buffers() + gradients.taken(signature) +
                signature.taking(Role.STATE).associate { it.name to places.getValue(it.name).read },
            entry.outputs.buffers() + gradients.given(signature) +
                signature.giving(Role.STATE).associate { it.name to places.getValue(it.name).written },
        )
    }

    override fun isFinite(entry: EntryPoint): Boolean {
        if (manifest.poles.isEmpty()) return true
        val given = manifest.signatures.getValue(entry.called).giving(Role.STATE).filter { it.dtype == Dtype.FLOAT32 }
        val broken = given.filter { !places.getValue(it.name).written.isFinite() }.map { it.name }
        // What begins infinite, as the least loss so far, may stay so.
        return manifest.stateTensors.none { it.tensor in broken && program.initial(it).isFinite() }
    }

    override fun keep(entry: EntryPoint, share: Float) {
        val signature = manifest.signatures.getValue(entry.called)
        gradients.keep(signature, share)
        for (spec in signature.giving(Role.STATE)) {
            places.getValue(spec.name).run { read = written.also { written = read } }
        }
        turned.computeIfPresent(entry.called) { _, isTurned -> !isTurned }
        if (entry.name == manifest.updatingName) gradients.clear()
    }

    override fun read(tensor: String): ByteArray = places.getValue(tensor).read.copy()

    override fun write(tensors: Map<String, ByteBuffer>) {
        for ((name, place) in places) place.read.fillFrom(tensors.getValue(name))
        gradients.clear()
    }
}
