package org.pocketune.desktop

import java.io.File
import kotlin.random.Random
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.Manifest
import org.pocketune.trainer.Role
import org.pocketune.trainer.Sample
import org.pocketune.trainer.TargetLabels
import org.pocketune.trainer.TensorSpec
import org.pocketune.trainer.Values

/**
 * Samples of a file of `np.savez`: an array for every input and target by its name in the program (`x`, `y`), of as many
 * rows each, and maybe `weight`. Throws [UsageException].
 */
internal fun samplesOf(file: File, manifest: Manifest): List<Sample> {
    val arrays = readNpz(file)
    fun array(name: String) =
        arrays[name] ?: throw UsageException("$file has no array '$name', only ${arrays.keys.sorted()}")
    val inputs = manifest.step.taking(Role.INPUT)
    val targets = manifest.step.taking(Role.TARGET)
    val weight = arrays["weight"]
    val names = (inputs + targets).map { it.label } + listOfNotNull("weight".takeIf { weight != null })
    val counts = names.associateWith { array(it).shape.firstOrNull() ?: 0 }
    val rows = counts.values.distinct().singleOrNull() ?: throw UsageException("$file: rows differ: $counts")
    fun row(specs: List<TensorSpec>, i: Int) = specs.associate { it.label to array(it.label).row(i, it.dtype) }
    return List(rows) { i ->
        val counted = (weight?.row(i, Dtype.FLOAT32) as Values.Floats?)?.array?.single() ?: 1f
        Sample(row(inputs, i), row(targets, i), counted)
    }
}

/** Samples of random numbers, which show that a program trains, and nothing else. */
internal fun madeUp(manifest: Manifest, batches: Int = 8): List<Sample> {
    val random = Random(0)
    val inputs = manifest.step.taking(Role.INPUT)
    val targets = manifest.step.taking(Role.TARGET)
    return List(batches * manifest.batch) { i ->
        val given = inputs.associate { it.name to numbers(it, random) }
        Sample(given, targets.associate { it.label to target(it, manifest, i, random) })
    }
}

private fun numbers(spec: TensorSpec, random: Random): Values = when (spec.dtype) {
    Dtype.FLOAT32 -> Values.Floats(FloatArray(spec.rowSize) { random.nextFloat() })
    Dtype.BOOL -> Values.Bools(BooleanArray(spec.rowSize) { random.nextBoolean() })
    Dtype.INT32, Dtype.INT8, Dtype.UINT8, Dtype.INT16 -> Values.Ints(IntArray(spec.rowSize) { random.nextInt(2) })
}

private fun target(spec: TensorSpec, manifest: Manifest, i: Int, random: Random): Values {
    val known = manifest.targetLabels[spec.name] ?: TargetLabels()
    val (count, only) = known.count to known.only
    return when {
        spec.dtype == Dtype.INT32 -> Values.Ints(IntArray(spec.rowSize) { i % (count ?: 2) })
        spec.dtype != Dtype.FLOAT32 -> numbers(spec, random)
        only.isNotEmpty() -> Values.Floats(FloatArray(spec.rowSize) { only[i % only.size].toFloat() })
        count != null -> Values.Floats(FloatArray(spec.rowSize) { if (it % count == i % count) 1f else 0f })
        else -> {
            val least = known.least ?: 0.0
            val range = (known.most ?: (least + 1)) - least
            Values.Floats(FloatArray(spec.rowSize) { (least + range * random.nextFloat()).toFloat() })
        }
    }
}
