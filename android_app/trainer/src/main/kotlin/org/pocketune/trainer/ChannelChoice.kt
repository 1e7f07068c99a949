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

    /** Which channels train, by weight, in order. */
    fun trained(state: List<StoredTensor>): Map<String, IntArray> {
        val tensors = state.associateBy { it.name }
        return choices.associate { it.weight to tensors.getValue(it.indices).ints() }
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

/** The weights that are state because their channels are redrawn, and which of their channels train. */
internal val Manifest.redrawn: List<Pair<ParameterSpec, ChosenChannels>>
    get() = choices.filter { it.product != null }.mapNotNull { choice ->
        parameters.find { it.name == choice.weight }?.let { it to choice }
    }

/** What is wrong with a weight in the state, or with what is added to its channels, where there is one. */
internal fun Manifest.problemOfRedrawn(choice: ChosenChannels, many: Int, state: Map<String, StateTensor>): String? {
    val product = choice.product ?: return null
    val known = parameters.associateBy { it.name }
    val weight = known[choice.weight] ?: return ": '${choice.weight}' is not in parameters"
    val change = known.getValue(choice.change)
    val isCut = listOf(weight, change).find { !it.isWhole(state) }
    if (isCut != null) return ": '${isCut.name}' is not whole in one tensor of float32"
    val shape = ViewStep.shape(product, weight.shape) ?: return ".product: it does not fit ${weight.shape}"
    val fits = shape.size > 1 && shape[shape.size - 2] == choice.channels && shape.product() == weight.shape.product()
    if (fits && change.shape == shape.dropLast(2) + many + shape.last()) return null
    return ".product: ${change.shape} is not what is added to $many channels of $shape"
}

/** Whether one tensor of the state, in float32, is all of it. */
private fun ParameterSpec.isWhole(state: Map<String, StateTensor>): Boolean {
    val stored = pieces.singleOrNull()?.takeIf { it.scales == null && frozen == null }?.let { state[it.tensor] }
    return dtype == Dtype.FLOAT32 && stored?.shape?.product() == shape.product()
}

/** Whether these are different channels that there are: the runtime does not look. */
internal fun ChosenChannels.isGood(indices: IntArray): Boolean =
    indices.toSet().size == indices.size && indices.all { it in 0 until channels }
