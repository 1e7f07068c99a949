package org.pocketune.trainer

import java.nio.ByteBuffer

/** The state in memory: a copy of each tensor by its name in the program, little-endian. Throws [BusyException]. */
suspend fun Trainer.tensors(): Map<String, ByteBuffer> = alone { engine.read().associate { it.name to it.bytes } }

/**
 * Puts tensors into the state in memory, by their names in the program; the others stay. `Trainer.save` keeps it.
 *
 * Throws [InputException] for a tensor of another name or size, [DivergedException] for one that is not finite, and
 * [BusyException]; nothing has changed then.
 */
suspend fun Trainer.putTensors(tensors: Map<String, ByteBuffer>): Unit = alone {
    val known = program.manifest.stateTensors.associateBy { it.tensor }
    val given = tensors.map { (name, bytes) ->
        val spec = known[name] ?: throw InputException("$name: the program has no such tensor")
        if (bytes.limit() != spec.byteSize) throw InputException("$name: ${bytes.limit()} bytes, and it has ${spec.byteSize}")
        StoredTensor(name, spec.dtype, spec.shape, bytes)
    }
    given.firstOrNull { !it.isFinite() }?.let { throw DivergedException("${it.name} holds NaN or infinity") }
    val changed = given.associateBy { it.name }
    val state = engine.read().map { changed[it.name] ?: it }
    if (!program.manifest.isStateOf(state)) throw InputException("the channels are none that the program's weights have")
    engine.write(state)
}

/** Where each element of what is stored lies in the model's tensor. */
fun StateTensor.places(): IntArray = model?.let(ViewStep::places) ?: IntArray(shape.product().toInt()) { it }
