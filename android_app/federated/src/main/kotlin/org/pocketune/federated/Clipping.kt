package org.pocketune.federated

import kotlin.math.min
import kotlin.math.sqrt

/**
 * What leaves a device of which the server's config asks for clipping, as Flower's `fixedclipping_mod` does it: the change of all
 * arrays together has at most this L2 norm.
 */
internal fun clipped(sent: Map<String, Tensor>, taken: Map<String, Tensor>, norm: Double): Map<String, Tensor> {
    var total = 0.0
    forEachChange(sent, taken) { _, _, change -> total += change * change }
    val factor = min(1.0, norm / sqrt(total))
    val arrays = sent.mapValues { (_, array) -> Tensor(array.shape, array.numbers.copyOf()) }
    forEachChange(sent, taken) { name, i, change ->
        arrays.getValue(name).numbers[i] = (taken.getValue(name).numbers[i] + factor * change).toFloat()
    }
    return arrays
}

private fun forEachChange(sent: Map<String, Tensor>, taken: Map<String, Tensor>, use: (String, Int, Double) -> Unit) {
    for ((name, array) in sent) {
        val before = taken.getValue(name).numbers
        for (i in before.indices) use(name, i, array.numbers[i].toDouble() - before[i])
    }
}
