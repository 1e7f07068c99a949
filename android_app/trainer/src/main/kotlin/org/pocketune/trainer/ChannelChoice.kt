package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** Which input channels of a program's weights train. */
internal class ChannelChoice(private val program: Program) {
    private val choices = program.manifest.choices

    /** Whether anything in a state but the choice itself is not as it was built. */
    fun hasTrained(state: List<StoredTensor>): Boolean {
        val chosen = choices.map { it.indices }
        return state.zip(program.initialState()).any { (now, built) ->
            now.name !in chosen && now.bytes.between(0, now.bytes.limit()) != built.bytes.between(0, built.bytes.limit())
        }
    }

    /** As many channels as train that have the most information, in order; of equal ones the first. */
    fun largest(information: Map<String, DoubleArray>): Map<String, IntArray> = choices.associate { choice ->
        val each = information.getValue(choice.weight)
        val many = program.manifest.stateTensors.first { it.tensor == choice.indices }.shape[0]
        choice.weight to each.indices.sortedByDescending { each[it] }.take(many).sorted().toIntArray()
    }

    /** The state as built, with other channels. */
    fun put(chosen: Map<String, IntArray>): List<StoredTensor> = program.initialState().map { tensor ->
        val choice = choices.firstOrNull { it.indices == tensor.name } ?: return@map tensor
        val bytes = ByteBuffer.allocate(tensor.bytes.limit()).order(ByteOrder.LITTLE_ENDIAN)
        bytes.asIntBuffer().put(chosen.getValue(choice.weight))
        StoredTensor(tensor.name, tensor.dtype, tensor.shape, bytes)
    }
}

/** Whether these are different channels that there are: the runtime does not look. */
internal fun ChosenChannels.isGood(indices: IntArray): Boolean =
    indices.toSet().size == indices.size && indices.all { it in 0 until channels }
