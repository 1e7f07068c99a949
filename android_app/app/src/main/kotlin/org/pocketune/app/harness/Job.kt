package org.pocketune.app.harness

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import org.pocketune.trainer.Dtype
import org.pocketune.trainer.InputException
import org.pocketune.trainer.Manifest
import org.pocketune.trainer.Role
import org.pocketune.trainer.Sample
import org.pocketune.trainer.TensorSpec
import org.pocketune.trainer.Values

/**
 * What to run; docs/harness.md is the contract.
 *
 * @property id names the files of the result.
 * @property program path of a training program.
 * @property batches path of batches for it, used in turn.
 * @property repeats each begins from the state that was built.
 */
@Serializable
data class Job(
    val format: String,
    val id: String,
    val program: String,
    val batches: String,
    val steps: Int,
    @SerialName("learning_rate") val learningRate: Float,
    val threads: Int = 1,
    val accelerator: String = "cpu",
    val repeats: Int = 1,
) {
    /** Throws [InputException] for a job that cannot be meant. */
    fun check() {
        val problem = when {
            format != FORMAT -> "format $format, and this app knows $FORMAT"
            !Regex("[A-Za-z0-9._-]{1,80}").matches(id) || id.startsWith('.') -> "id: letters, digits, '.', '_' and '-' only"
            steps !in 1..MOST_STEPS -> "steps: 1 to $MOST_STEPS"
            repeats !in 1..MOST_REPEATS -> "repeats: 1 to $MOST_REPEATS"
            threads !in 1..MOST_THREADS -> "threads: 1 to $MOST_THREADS"
            accelerator !in listOf("cpu", "gpu") -> "accelerator: cpu or gpu"
            else -> return
        }
        throw InputException("job: $problem")
    }

    companion object {
        const val FORMAT = "pocketune-job/1"
        private const val MOST_STEPS = 100_000
        private const val MOST_REPEATS = 1000
        private const val MOST_THREADS = 64
    }
}

/** The rows of a file of batches: for each step its inputs, y and weight, each of them all rows of the step. */
fun readBatches(file: File, manifest: Manifest): List<Sample> {
    val specs = manifest.step.inputs.filter { it.role in listOf(Role.INPUT, Role.TARGET, Role.WEIGHT) }
    val batchBytes = manifest.batch * specs.sumOf { it.rowSize.toLong() * it.dtype.bytes }
    if (file.length() == 0L || file.length() % batchBytes != 0L) {
        throw InputException("${file.name}: ${file.length()} bytes, and a batch has $batchBytes")
    }
    val bytes = ByteBuffer.wrap(file.readBytes()).order(ByteOrder.LITTLE_ENDIAN)
    return List((file.length() / batchBytes).toInt()) {
        val tensors = specs.associateWith { spec -> List(manifest.batch) { bytes.row(spec) } }
        List(manifest.batch) { row -> sample(tensors.mapValues { (_, rows) -> rows[row] }) }
    }.flatten()
}

private fun sample(row: Map<TensorSpec, Values>): Sample {
    fun of(role: Role) = row.filterKeys { it.role == role }
    return Sample(
        inputs = of(Role.INPUT).mapKeys { (spec, _) -> spec.name },
        targets = of(Role.TARGET).mapKeys { (spec, _) -> spec.label },
        weight = (of(Role.WEIGHT).values.single() as Values.Floats).array.single(),
    )
}

private fun ByteBuffer.row(spec: TensorSpec): Values = when (spec.dtype) {
    Dtype.FLOAT32 -> Values.Floats(FloatArray(spec.rowSize) { getFloat() })
    Dtype.INT32 -> Values.Ints(IntArray(spec.rowSize) { getInt() })
    Dtype.BOOL -> Values.Bools(BooleanArray(spec.rowSize) { get() != 0.toByte() })
    Dtype.INT8 -> Values.Ints(IntArray(spec.rowSize) { get().toInt() })
    Dtype.UINT8 -> Values.Ints(IntArray(spec.rowSize) { get().toUByte().toInt() })
    Dtype.INT16 -> Values.Ints(IntArray(spec.rowSize) { getShort().toInt() })
}
