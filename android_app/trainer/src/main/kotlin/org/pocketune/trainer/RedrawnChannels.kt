package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Random

/**
 * Channels redrawn during a training: a weight takes up what was added to its channels, and as many others train; the twin
 * of the host's `converter/runtime/session/redrawing.py`.
 */
internal class RedrawnChannels(private val program: Program) {
    private val manifest = program.manifest

    /** Channels by weight, in order, drawn with equal chances by the generator of the orders, with seeds of its own. */
    fun drawn(seed: Long, epoch: Int): Map<String, IntArray> {
        val random = Random((-1 - seed) * EPOCHS_APART + epoch)
        return manifest.redrawn.associate { (weight, choice) ->
            val many = manifest.stateTensors.first { it.tensor == choice.indices }.shape[0]
            val channels = (0 until choice.channels).toList().shuffledBy(random).take(many)
            weight.name to channels.sorted().toIntArray()
        }
    }

    /** The state in which others train: [channels] by weight. The model computes the same but for rounding. */
    fun redrawn(state: List<StoredTensor>, channels: Map<String, IntArray>): List<StoredTensor> {
        val others = manifest.redrawn.associate { (weight, choice) -> choice.indices to channels.getValue(weight.name) }
        return folded(state).map { tensor ->
            val chosen = others[tensor.name] ?: return@map tensor
            tensor.changed { bytes -> chosen.forEachIndexed { i, channel -> bytes.putInt(i * Int.SIZE_BYTES, channel) } }
        }
    }

    /** The state in which weights have taken up what was added to them; that, and what is kept of it, is as built. */
    fun folded(state: List<StoredTensor>): List<StoredTensor> {
        val after = state.associateBy { it.name }.toMutableMap()
        for ((weight, choice) in manifest.redrawn) {
            val change = manifest.parameters.first { it.name == choice.change }
            val base = after.getValue(weight.pieces.single().tensor)
            val numbers = after.getValue(change.pieces.single().tensor).bytes.let { it.between(0, it.limit()).asFloatBuffer() }
            val places = placesOf(weight, change, choice, after.getValue(choice.indices).ints())
            after[base.name] = base.changed { bytes ->
                places.forEachIndexed { i, place ->
                    bytes.putFloat(place * Float.SIZE_BYTES, bytes.getFloat(place * Float.SIZE_BYTES) + numbers.get(i))
                }
            }
            for (tensor in keptOf(change.name, manifest.stateTensors)) {
                after[tensor.tensor] = StoredTensor(tensor.tensor, tensor.dtype, tensor.shape, program.initial(tensor))
            }
        }
        return state.map { after.getValue(it.name) }
    }

    /** Where each number of a change, as it is stored, lies in the weight as that is stored. */
    private fun placesOf(weight: ParameterSpec, change: ParameterSpec, choice: ChosenChannels, channels: IntArray): IntArray {
        val stored = ViewStep.places(weight.model())
        val at = IntArray(stored.size).also { found -> stored.forEachIndexed { i, place -> found[place] = i } }
        val product = ViewStep.places(ModelTensor(weight.name, weight.shape, checkNotNull(choice.product)))
        val outputs = change.shape.last()
        val changes = ViewStep.places(change.model())
        return IntArray(changes.size) { i ->
            val rows = changes[i] / outputs
            val row = rows / channels.size * choice.channels + channels[rows % channels.size]
            at[product[row * outputs + changes[i] % outputs]]
        }
    }

    private fun ParameterSpec.model() = ModelTensor(name, shape, pieces.single().view)

    private fun StoredTensor.changed(change: (ByteBuffer) -> Unit): StoredTensor {
        val copy = ByteBuffer.allocate(bytes.limit()).order(ByteOrder.LITTLE_ENDIAN)
        copy.put(bytes.between(0, bytes.limit())).rewind()
        change(copy)
        return StoredTensor(name, dtype, shape, copy)
    }
}
