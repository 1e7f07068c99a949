package org.pocketune.trainer

import java.util.IdentityHashMap

/**
 * What the frozen first layers make of rows: the same in every epoch, so it is computed once a row, and steps run on it,
 * where the program offers that.
 */
internal class KeptFeatures(private val manifest: Manifest, private val engine: Engine) {
    private val isOffered = FEATURES in manifest.signatures
    private val kept = IdentityHashMap<Sample, Sample>()

    /** The signature that takes the rows of a step. */
    val stepName: String = if (isOffered) manifest.stepOnFeatures else manifest.stepName

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

    private companion object {
        const val FEATURES = "features"
    }
}
