package org.pocketune.trainer

/** How many operations are named. */
private const val NAMED = 3

/** Why a step was refused whose loss, or something that it wrote, is not finite: operations come before the learning rate. */
internal fun Manifest.refusal(loss: Float, rate: Float): String {
    val what =
        if (loss.isFinite()) "the step makes weights or slots NaN or infinite, though its loss is $loss" else "the loss is $loss"
    val diverged = "the training has diverged, often because the learning rate ($rate) is too high"
    return "$what: ${operations()?.let { "$it; else $diverged" } ?: diverged}"
}

/** Which operations can be infinite, and what to do about it; null where there are none. */
internal fun Manifest.operations(): String? {
    if (poles.isEmpty()) return null
    val named = poles.take(NAMED).joinToString(" or ") + if (poles.size > NAMED) " or others" else ""
    return "$named can be infinite, or have an infinite slope, at finite numbers, as a root or a logarithm at 0. Keep what " +
        "it takes away from these, for example by adding a small number"
}
