package org.pocketune.federated

import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.sqrt
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.Program
import org.pocketune.trainer.StateTensor
import org.pocketune.trainer.places

/** A state tensor as it travels: in the model's layout, of a weight that trains in part the part. */
internal class Travelling(val tensor: String, private val stored: Int, places: IntArray, whole: List<Int>) {
    /** Where each element of what travels is stored. */
    private val order: IntArray = places.indices.sortedBy { places[it] }.toIntArray()

    /** Of what travels; flat where that is no box. */
    val shape: List<Int> = boxOf(places, whole)

    fun sent(bytes: ByteBuffer): Tensor {
        val numbers = bytes.duplicate().apply { clear() }.order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer()
        return Tensor(shape, FloatArray(order.size) { numbers.get(order[it]) })
    }

    /** Inverse of [sent]. */
    fun taken(tensor: Tensor): ByteBuffer {
        val bytes = ByteBuffer.allocate(4 * stored).order(ByteOrder.LITTLE_ENDIAN)
        order.forEachIndexed { i, at -> bytes.putFloat(4 * at, tensor.numbers[i]) }
        return bytes
    }

    companion object {
        fun of(spec: StateTensor): Travelling {
            val places = spec.places()
            return Travelling(spec.tensor, places.size, places, spec.model?.shape ?: spec.shape)
        }

        /** The shape of a part of a tensor. */
        private fun boxOf(places: IntArray, whole: List<Int>): List<Int> {
            val strides = whole.indices.map { whole.drop(it + 1).fold(1) { product, d -> product * d } }
            val box = whole.indices.map { axis -> places.map { it / strides[axis] % whole[axis] }.distinct().size }
            return box.takeIf { it.fold(1L) { product, d -> product * d } == places.size.toLong() } ?: listOf(places.size)
        }
    }
}

/**
 * What of a program's state travels, and checks of what a server sends: `converter.federated.arrays` of the host.
 *
 * @param bound the owner's, of the norm of all trained arrays; null: ten times that of what was built, and ten times the root
 *   of the number of numbers.
 * @param patterns of what is [personal], as [personalIn] reads them.
 */
internal class Exchange(program: Program, bound: Double? = null, patterns: List<String> = emptyList()) {
    private val states = program.manifest.stateTensors.filter { it.dtype == Dtype.FLOAT32 && it.tensor != LOSS_OF_STEP }
    private val weights = states.filter { !it.slot }.associate { it.called to Travelling.of(it) }

    /** The trained tensors that stay at home, by the model's names (FedPer). */
    val personal: Map<String, Travelling> = personalIn(weights.keys, patterns).associateWith(weights::getValue)

    val identity: String = program.manifest.federatedIdentity(personal.keys)

    /** What a server may name: that, or the one that has the labels in it whatever is personal, which says all the more. */
    val accepted: Set<String> = setOf(identity, program.manifest.federatedIdentity())

    /** Tensors of the program that stay here: those that are personal, and with a last layer that has room for classes their names. */
    val atHome: Set<String> =
        personal.values.mapTo(LinkedHashSet()) { it.tensor } + listOfNotNull(namesAtHome(program.manifest.head, personal::containsKey))

    /** The trained tensors and statistics that are shared, by the model's names. */
    val trained: Map<String, Travelling> = weights - personal.keys

    private val allSlots =
        states.filter { it.slot && MU !in it.called && ANCHOR !in it.called }.associate { it.called to Travelling.of(it) }

    /** Those of the optimizer for what is shared, which stay at home unless the server sends them; FedProx's are none of them. */
    val slots: Map<String, Travelling> = allSlots.filterKeys { name -> personal.keys.none { name.endsWith("/$it") } }

    /** Tensors of the program that a client has from round to round: slots, what is personal, and its slots. */
    val kept: Set<String> = (allSlots.values + personal.values).mapTo(HashSet()) { it.tensor }
    private val mu = states.firstOrNull { it.slot && it.called.endsWith(MU) }?.tensor
    private val anchors = states.filter { it.slot && ANCHOR in it.called }
        .associate { weights.getValue(it.called.substringAfter(ANCHOR)).tensor to it.tensor }

    /** The bias of a head with room for classes, and how many it had from the start. */
    private val later = program.manifest.head?.takeIf { it.names != null }?.let { it.bias to it.own }

    /** The largest L2 norm of all trained arrays together that is taken. */
    val norm: Double = bound ?: states.filter { it.called in trained }.associate { it.called to trained.getValue(it.called).sent(program.initial(it)) }
        .let { built -> TIMES * normOf(built) + TIMES * sqrt(built.values.sumOf { it.numbers.size.toDouble() }) }

    /** Whether the program was built with FedProx's term. */
    val hasProximal: Boolean get() = mu != null

    /** The arrays that leave the device, by the model's names. */
    fun sent(state: Map<String, ByteBuffer>, withSlots: Boolean): Map<String, Tensor> =
        travelling(withSlots).mapValues { (_, one) -> one.sent(state.getValue(one.tensor)) }

    /** Checked arrays as the program stores them, by its tensors. Throws [RefusedRoundException]. */
    fun taken(arrays: Map<String, Tensor>): Map<String, ByteBuffer> {
        val expected = travelling(asksSlots(arrays.keys))
        (arrays.keys - expected.keys).firstOrNull()?.let {
            if (it in personal) {
                throw RefusedRoundException(
                    "the server sent '$it', which is personal here and stays: both need the same patterns (personal)",
                )
            }
            throw RefusedRoundException("the server sent '$it', which this program does not train.")
        }
        (expected.keys - arrays.keys).takeIf { it.isNotEmpty() }?.let {
            throw RefusedRoundException("the server did not send ${it.first()}${if (it.size > 1) " and ${it.size - 1} others" else ""}")
        }
        for ((name, one) in expected) {
            val array = arrays.getValue(name)
            if (array.shape != one.shape) throw RefusedRoundException("$name came as ${array.shape}, and is ${one.shape}")
            if (array.numbers.any { !it.isFinite() }) throw RefusedRoundException("$name came with NaN or infinity")
        }
        val size = normOf(arrays)
        if (size > norm) {
            throw RefusedRoundException("the arrays of the server have a norm of %.3g, and %.3g is allowed here".format(size, norm))
        }
        return expected.entries.associate { (name, one) -> one.tensor to one.taken(arrays.getValue(name)) }
    }

    /** What a round begins with: the tensors of the server, [own] that are personal, and what FedProx's term is held by. */
    fun begun(taken: Map<String, ByteBuffer>, proximalMu: Float?, own: Map<String, ByteBuffer>): Map<String, ByteBuffer> {
        val begins = own + taken
        val held = anchors.entries.associate { (tensor, anchor) -> anchor to begins.getValue(tensor) }
        val asked = if (proximalMu == null || mu == null) emptyMap() else mapOf(mu to number(proximalMu))
        return begins + held + asked
    }

    /** Whether what a server sent has the optimizer's slots, which it then gets back. */
    fun asksSlots(names: Set<String>): Boolean = names.any { it in slots }

    /** Bytes of numbers that travel in one direction. */
    fun bytes(withSlots: Boolean): Long = travelling(withSlots).values.sumOf { 4L * it.shape.fold(1) { product, d -> product * d } }

    private fun travelling(withSlots: Boolean) = if (withSlots) trained + slots else trained

    /** The L2 norm, added up in double. A bias of -30,000 says that there is no such class: what is below that counts. */
    private fun normOf(arrays: Map<String, Tensor>): Double {
        var total = 0.0
        for (name in trained.keys) {
            arrays.getValue(name).numbers.forEachIndexed { i, number ->
                val isFree = later != null && name == later.first && i >= later.second && number <= FREE / 2 // a mean rounds it
                val counted = if (isFree) number - FREE else number.toDouble()
                total += counted * counted
            }
        }
        return sqrt(total)
    }

    private fun number(value: Float) = ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).apply { putFloat(0, value) }

    private companion object {
        const val MU = "/proximal_mu"
        const val ANCHOR = "/proximal_anchor/"
        const val TIMES = 10.0
        const val FREE = -30_000.0
    }
}
