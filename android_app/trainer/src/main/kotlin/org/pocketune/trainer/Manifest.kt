// Written by scripts/manifest from converter/program/manifest/schema.toml and scripts/readers/Manifest.kt.j2: change those,
// and run it.

package org.pocketune.trainer

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive

/**
 * An input or output of a signature. `role` says who feeds or reads it.
 */
@Serializable
data class TensorSpec(
    val name: String,
    val shape: List<Int>,
    val dtype: Dtype,
    val role: Role,
) {
    /** Elements. */
    val size: Int get() = shape.product().toInt()

    /** Elements of one row: one step along the first axis. */
    val rowSize: Int get() = size / shape[0]

    /** What the app calls it: of several targets each is `y/<label>`. */
    val label: String get() = if (role == Role.TARGET) name.removePrefix("$TARGET/") else name

    override fun toString() = "${dtype.name.lowercase()}$shape"
}

/**
 * What one entry point of the program takes and gives, in order.
 *
 * @property mixing where rows of a batch influence each other, in words: such a call takes a whole batch. Null:
 *   nowhere.
 * @property fixed of `infer`, or `infer_features` in its place: why the model that is exported takes its own number
 *   of rows and no other, in words. Null: it takes any.
 */
@Serializable
data class Signature(
    val inputs: List<TensorSpec>,
    val outputs: List<TensorSpec>,
    val mixing: String? = null,
    val fixed: String? = null,
) {
    fun taking(role: Role): List<TensorSpec> = inputs.filter { it.role == role }

    fun giving(role: Role): List<TensorSpec> = outputs.filter { it.role == role }

    /** This one, which takes features, as it is where [features] is called before it with the rows. */
    internal fun behind(features: Signature) = copy(inputs = features.inputs + inputs.filter { it.role != Role.INPUT })
}

/**
 * A tensor that outlives a step, as stored: a trained one, or a slot of the optimizer.
 *
 * @property model what it is in the model's own terms; null where an older Pocketune did not say.
 */
@Serializable
data class StateTensor(
    val tensor: String,
    val shape: List<Int>,
    val dtype: Dtype,
    val slot: Boolean,
    val model: ModelTensor? = null,
) {
    val byteSize: Int get() = (shape.product() * dtype.bytes).toInt()

    /** What the user calls it. */
    internal val name: String get() = model?.name ?: tensor
}

/**
 * What a program says about itself.
 *
 * @property graphHash sha256 of the operators, constants, built weights and classes of this very program.
 * @property batch rows of one step.
 * @property microBatch rows of one call, `batch` where all come at once. Else a step is a call of `accumulate` for
 *   each micro-batch, with weights that sum to one over the whole step, and one of `apply`. Of `gradients` the caller
 *   adds up what it gives, each by its share of the weight of the whole step.
 * @property loss its name, or that of each output which has one.
 * @property costs predicted.
 * @property labels names of the classes, in order.
 * @property labelled the outputs whose classes these are; none where the state itself names the classes, or an
 *   older Pocketune built the program.
 * @property preprocessing how the app makes an input, in terms of its own.
 * @property card what people are to know of the model, by names as of a model card: `license`, `author`, `source`,
 *   `description`.
 * @property frozen element type of the frozen layers where the target gains by it.
 * @property learningRate of a step that is given none; null where the rate runs in the program.
 * @property runningRate the rate that runs in the program, where one does.
 * @property choices the weights of which chosen channels train.
 * @property lossScale what `gradients` gives is this many times the gradient; `apply` takes it so. A power of two.
 * @property keepBase weight of a penalty for leaving the base: what the step minimizes, and gives as `loss`, is the
 *   loss + this times the divergence of the model's probabilities from those of the model as it was built; `evaluate`
 *   gives the loss alone.
 * @property rowClipping the largest L2 norm of a row's gradient over all trained tensors, to which larger ones are
 *   scaled down before the mean is taken; null: any.
 * @property certificates on which engines the step was run, the last time of each.
 * @property targetLabels what the loss takes for each target, by its name; where nothing is said, any numbers.
 * @property poles operations of the step whose value or slope may be infinite though all that they take is finite,
 *   in words; where the runtime keeps the state, the signatures that update it then give `finite`: 0, or NaN where
 *   something that they wrote is not finite.
 * @property head the last layer, where the runtime may set it; null where not.
 * @property identity what a saved state belongs to; null where an older Pocketune built the program.
 */
@Serializable
data class Manifest(
    val format: String,
    val name: String,
    @SerialName("graph_hash") val graphHash: String,
    val target: String,
    val state: StateKind,
    val batch: Int,
    @SerialName("micro_batch") val microBatch: Int,
    val loss: JsonElement,
    val optimizer: String,
    val update: Update,
    val signatures: Map<String, Signature>,
    @SerialName("state_tensors") val stateTensors: List<StateTensor>,
    val parameters: List<ParameterSpec>,
    val costs: Map<String, Double?>,
    val labels: List<String>? = null,
    val labelled: List<LabelledOutput> = emptyList(),
    val preprocessing: JsonObject? = null,
    val card: Map<String, String> = emptyMap(),
    val frozen: Frozen = Frozen.FLOAT32,
    @SerialName("learning_rate") val learningRate: Double? = null,
    @SerialName("running_rate") val runningRate: RunningRate? = null,
    val choices: List<ChosenChannels> = emptyList(),
    @SerialName("loss_scale") val lossScale: Double = 1.0,
    @SerialName("keep_base") val keepBase: Double = 0.0,
    @SerialName("row_clipping") val rowClipping: Double? = null,
    val certificates: List<Certificate> = emptyList(),
    @SerialName("target_labels") val targetLabels: Map<String, TargetLabels> = emptyMap(),
    val poles: List<String> = emptyList(),
    val head: ClassHead? = null,
    val identity: Identity? = null,
) {
    /** Whether the program was found right on an engine, in this very version. */
    fun isCertified(on: String, engine: String, version: String): Boolean =
        certificates.any { it.on == on && it.ok && it.engine == engine && it.version == version }

    /** Bytes of all state tensors. */
    val stateBytes: Long get() = stateTensors.sumOf { it.byteSize.toLong() }

    /** The loss of each target that has one of its own, by the target's name. */
    val losses: Map<String, String>
        get() = when (loss) {
            is JsonObject -> loss.entries.associate { (output, name) -> "$TARGET/$output" to name.text }
            else -> mapOf(TARGET to loss.text)
        }

    /** What the loss takes for the only target, whatever its name; null of several, and of one without labels. */
    val onlyLabels: TargetLabels? get() = step.taking(Role.TARGET).singleOrNull()?.let { targetLabels[it.name] }

    /** How many answers a classifier chooses from; null when the only target is no label. */
    val classes: Int?
        get() = onlyLabels?.count?.takeIf { step.taking(Role.TARGET)[0].dtype == Dtype.INT32 }

    /** Whether the rows of a step come in several calls. */
    val accumulates: Boolean get() = microBatch < batch

    /** The signature that takes the rows of a step. */
    val step: Signature get() = calls.getValue(stepName)

    /** The signature that changes what trains. */
    val updating: Signature get() = calls.getValue(updatingName)

    /** What [step] is called. */
    val stepName: String
        get() = when {
            state == StateKind.SPLIT -> "gradients"
            accumulates -> "accumulate"
            else -> "train"
        }

    /** Takes what the frozen first layers gave in place of the model's inputs, where a program offers `features`. */
    internal val stepOnFeatures: String get() = "$stepName$ON_FEATURES"
    internal val updatingName: String get() = if (stepName == "train") "train" else UPDATE

    /** The signatures that the file has on features alone, by their own names: `features` is called before them. */
    internal val behindFeatures: Map<String, String> by lazy {
        val named = if (FEATURES in signatures) listOf(stepName, "evaluate", "infer") else emptyList()
        named.filter { it !in signatures && "$it$ON_FEATURES" in signatures }.associateWith { "$it$ON_FEATURES" }
    }

    /** What may be called: the signatures, and those that `features` is called before, by their own names. */
    internal val calls: Map<String, Signature> by lazy {
        behindFeatures.mapValues { signatures.getValue(it.value).behind(signatures.getValue(FEATURES)) } + signatures
    }

    /** The signature of the file that makes a step of rows, or of what `features` gives where it has it on that alone. */
    val storedStepName: String get() = behindFeatures[stepName] ?: stepName

    /** The signatures for an accelerator: all but the update of a split program. */
    val accelerated: Set<String> get() = if (state == StateKind.SPLIT) signatures.keys - UPDATE else signatures.keys

    val evaluate: Signature? get() = calls["evaluate"]
    val fisher: Signature? get() = signatures["fisher"]
    val infer: Signature get() = calls.getValue("infer")

    /** The signatures that give the model's outputs, by the rows that each takes, the fewest first. */
    internal val infers: Map<Int, String> by lazy {
        val names = calls.keys.filter { it == "infer" || rowsToInfer(it) != null }
        names.associateBy { calls.getValue(it).taking(Role.INPUT)[0].shape[0] }.toSortedMap()
    }
}

/** The rows of `infer_<rows>`; null for any other name of a signature. */
internal fun rowsToInfer(name: String): Int? =
    Regex("infer_([1-9][0-9]{0,8})").matchEntire(name)?.let { it.groupValues[1].toInt() }

/** The signature that gives what the frozen first layers make of rows; what is behind the name of one that takes that. */
internal const val FEATURES = "features"
internal const val ON_FEATURES = "_features"

/** The signature that updates what trains, where another takes the rows of a step. */
internal const val UPDATE = "apply"

/** What the only target is called; several are called this, a slash and a name of their own. */
internal const val TARGET = "y"

private val JsonElement.text: String get() = (this as JsonPrimitive).content

/** Elements of a shape; never overflows into something small. */
internal fun List<Int>.product(): Long = fold(1L) { product, d ->
    if (product > Int.MAX_VALUE) Long.MAX_VALUE else product * d
}
