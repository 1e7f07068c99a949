package org.pocketune.federated

import okio.ByteString.Companion.encodeUtf8
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.InputException
import org.pocketune.trainer.Manifest
import org.pocketune.trainer.StateTensor

/** A slot of the optimizer that holds the loss of the last step. */
internal const val LOSS_OF_STEP = "optimizer/loss"

/** What the user calls it. */
internal val StateTensor.called: String get() = model?.name ?: tensor

/**
 * What programs have in common whose trained tensors may be averaged, as the host's `pocketune.federated.identity` gives it:
 * 64 hexadecimal digits. Throws [InputException] where there is no such thing.
 *
 * @param personal the names of the trained tensors that stay at home. The labels have no part in it where these are all that
 *   stands for classes.
 */
fun Manifest.federatedIdentity(personal: Set<String> = emptySet()): String {
    if (choices.isNotEmpty()) {
        throw InputException("$name trains channels that each device chooses: they cannot be averaged. Build with update='sparse'")
    }
    if (stateTensors.any { it.dtype == Dtype.INT8 }) {
        throw InputException("$name keeps weights in int8, to which a mean would be rounded in each round. Build with train_as='float32'")
    }
    val own = identity ?: throw InputException("$name has no identity: an older Pocketune built it. Build it again")
    val trained = stateTensors.filter { !it.slot && it.tensor != LOSS_OF_STEP }
    val lines = listOf("pocketune-federated/${own.version}", own.forward, own.update, own.int8) +
        own.frozen.map { it.digest } +
        trained.map { "${it.called} ${it.dtype.name.lowercase()} ${(it.model?.shape ?: it.shape).joinToString("x")}" }
            .sortedWith(BY_CODE_POINT) +
        sharedLabels(personal).map { "class $it" }
    return lines.joinToString("\n").encodeUtf8().sha256().hex()
}

/** The labels; none where all that trains of each layer that gives their classes is personal. */
private fun Manifest.sharedLabels(personal: Set<String>): List<String> {
    val layers = head?.takeIf { it.names != null }?.let { listOf(listOf(it.kernel, it.bias)) } ?: labelled.map { it.parameters }
    val own = layers.isNotEmpty() && layers.all { it.isNotEmpty() && personal.containsAll(it) }
    return if (own) emptyList() else labels.orEmpty()
}

/** The order of Python's strings. */
private val BY_CODE_POINT = Comparator<String> { a, b -> a.encodeUtf8().compareTo(b.encodeUtf8()) }
