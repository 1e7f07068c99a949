package org.pocketune.trainer

import java.util.IdentityHashMap

/**
 * What the frozen first layers make of rows: the same in every epoch, so it is computed once a row, and steps, and the
 * evaluation of held-out rows, run on it where the program offers that.
 */
internal class KeptFeatures(private val manifest: Manifest, private val engine: Engine) {
    private val isOffered = FEATURES in manifest.signatures
    private val kept = IdentityHashMap<Sample, Sample>()

    /** The signature that takes the rows of a step. */
    val stepName: String = if (isOffered) manifest.stepOnFeatures else manifest.stepName

    private val isJudging = isOffered && "evaluate$ON_FEATURES" in manifest.signatures

    /** The signature that takes held-out rows. */
    val evaluateName: String = if (isJudging) "evaluate$ON_FEATURES" else "evaluate"

    /** Held-out rows as that takes them; of each it is computed once. */
    suspend fun judged(heldOut: List<Sample>, between: suspend () -> Unit): List<Batch> {
        if (isJudging && heldOut.any { it.weight > 0 && it !in kept }) keep(heldOut, between)
        return heldOut.inBatches(manifest.microBatch).map { if (isJudging) of(it) else it }
    }

    /** Computes it for all that count among some rows; [between] is called before each call of the runtime. */
    suspend fun keep(samples: List<Sample>, between: suspend () -> Unit) {
        if (!isOffered) return
        val size = manifest.signatures.getValue(FEATURES).taking(Role.INPUT)[0].shape[0]
        for (batch in samples.inBatches(size)) {
            val features = engine.infer(listOf(FEATURES to batch), between)
            batch.rows.forEachIndexed { i, row -> kept[row] = Sample(features[i], row.targets, row.weight) }
        }
    }

    /** A batch as the step takes it. */
    fun of(batch: Batch): Batch =
        if (isOffered) Batch(batch.rows.map { kept.getValue(it) }, batch.weights) else batch
}
