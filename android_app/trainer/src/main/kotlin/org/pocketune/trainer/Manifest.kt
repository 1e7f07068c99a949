package org.pocketune.trainer

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive

/** Type of the elements of a tensor; int8 is that of kept features only. [bytes]: of one element. */
@Serializable
enum class Dtype(val bytes: Int) {
    @SerialName("float32") FLOAT32(4),
    @SerialName("int32") INT32(4),
    @SerialName("bool") BOOL(1),
    @SerialName("int8") INT8(1),
}

/** Who feeds or reads a tensor of a signature. */
@Serializable
enum class Role {
    @SerialName("input") INPUT,
    @SerialName("target") TARGET,
    @SerialName("weight") WEIGHT,
    @SerialName("learning_rate") LEARNING_RATE,
    @SerialName("state") STATE,
    @SerialName("gradient") GRADIENT,
    @SerialName("tick") TICK,
    @SerialName("loss") LOSS,
    @SerialName("correct") CORRECT,
    @SerialName("figure") FIGURE,
    @SerialName("mask") MASK,
    @SerialName("output") OUTPUT,
    @SerialName("fisher") FISHER,
    @SerialName("done") DONE,
}

/**
 * How a program keeps its state: in the runtime, or passed in and out of every step, which is one call or, [SPLIT], the
 * gradients by one signature, in the arithmetic of an accelerator, and the update by another, in float32.
 */
@Serializable
enum class StateKind {
    @SerialName("variables") VARIABLES,
    @SerialName("stateless") STATELESS,
    @SerialName("split") SPLIT,
}

/** Element type of the frozen layers, where the target gains by it. */
@Serializable
enum class Frozen {
    @SerialName("float32") FLOAT32,
    @SerialName("int8") INT8,
}

/** An input or output of a signature. */
@Serializable
data class TensorSpec(val name: String, val shape: List<Int>, val dtype: Dtype, val role: Role) {
    /** Elements. */
    val size: Int get() = shape.product().toInt()

    /** Elements of one row: one step along the first axis. */
    val rowSize: Int get() = size / shape[0]

    /** What the app calls it: of several targets each is `y/<label>`. */
    val label: String get() = if (role == Role.TARGET) name.removePrefix("$TARGET/") else name

    override fun toString() = "${dtype.name.lowercase()}$shape"
}

/**
 * One entry point of a program: what it takes and gives, in order.
 *
 * @property mixing where rows of a batch influence each other, in words: such a call takes a whole batch. Null: nowhere.
 */
@Serializable
data class Signature(
    val inputs: List<TensorSpec>,
    val outputs: List<TensorSpec>,
    val mixing: String? = null,
) {
    fun taking(role: Role): List<TensorSpec> = inputs.filter { it.role == role }

    fun giving(role: Role): List<TensorSpec> = outputs.filter { it.role == role }
}

/**
 * A state tensor in the model's own terms, which programs of all targets and batch sizes share.
 *
 * @property name of the parameter or slot.
 * @property shape of the whole parameter in the model's own layout; a slot that goes with one has its.
 * @property view how the state tensor is cut out of that.
 */
@Serializable
data class ModelTensor(val name: String, val shape: List<Int>, val view: List<JsonElement>) {
    /** Whether the view gives so many elements as a tensor of the shape [stored] has. */
    internal fun gives(stored: List<Int>): Boolean {
        if (shape.any { it < 1 } || shape.product() > Int.MAX_VALUE) return false
        val given = view.fold(shape as List<Int>?) { now, step -> now?.let { ViewStep.parse(step)?.on(it) } }
        return given?.product() == stored.product()
    }
}

/**
 * A tensor that outlives a step: a trained one, or a [slot] of the optimizer.
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

    /** What the person calls it. */
    internal val name: String get() = model?.name ?: tensor
}

/** A weight, or the part of one, that does not train. [digest]: of the numbers that do not. */
@Serializable
data class FrozenWeight(val name: String, val shape: List<Int>, val digest: String)

/**
 * What two programs must have in common beside their state tensors for one to go on with the other's state.
 *
 * @property optimizer its name, for people.
 * @property update digest of how the optimizer computes an update and its slots, whatever its rates are.
 * @property forward digest of what the model computes of its inputs and weights.
 * @property frozen the weights that do not train, in the order in which the model reads them.
 * @property int8 digest of what became int8, and how; empty where nothing did.
 * @property version of the way in which [forward] and [update] are computed.
 */
@Serializable
data class Identity(
    val optimizer: String,
    val update: String,
    val forward: String,
    val frozen: List<FrozenWeight>,
    val int8: String,
    val version: Int,
) {
    /** Whether its digests are such. */
    internal val isGood: Boolean
        get() = (listOf(update, forward, int8.ifEmpty { forward }) + frozen.map { it.digest }).all(DIGEST::matches)
}

private val DIGEST = Regex("[0-9a-f]{16}")

/** Where a state tensor lies in the weight that the person knows. */
@Serializable
data class Piece(val tensor: String, val view: List<JsonElement>)

/** Where the frozen part of a weight lies in it, and the metadata entry that holds it. */
@Serializable
data class FrozenPart(val entry: String, val shape: List<Int>, val view: List<JsonElement>)

/** A trained weight by the model's own name, in its layout. [frozen]: the part of it that does not train. */
@Serializable
data class ParameterSpec(
    val name: String,
    val shape: List<Int>,
    val dtype: Dtype,
    val pieces: List<Piece>,
    val frozen: FrozenPart?,
)

/**
 * A frozen weight of which some input channels are changed.
 *
 * @property channels how many it has.
 * @property indices the state tensor that says which of them, int32, each once.
 * @property change the parameter that is added to these; zero at first.
 */
@Serializable
data class ChosenChannels(val weight: String, val channels: Int, val indices: String, val change: String) {
    /** Whether these are different channels that there are: the runtime does not look. */
    internal fun isGood(indices: IntArray): Boolean =
        indices.toSet().size == indices.size && indices.all { it in 0 until channels }
}

/**
 * The labels that a target holds: those from 0 to count - 1, and what the loss leaves out.
 *
 * @property count how many there are.
 * @property masked whether those below 0 are left out.
 * @property ignored one more that is left out, be it among the others or beyond them.
 */
@Serializable
data class TargetLabels(val count: Int, val masked: Boolean = false, val ignored: Int? = null) {
    /** Whether [label] is such. */
    internal fun fits(label: Int): Boolean = label == ignored || label < count && (masked || label >= 0)
}

/** One line of the update scheme: how much of a weight trains. */
@Serializable
data class UpdateRow(val parameter: String, val fraction: Double, val why: String)

/** Which weights train. */
@Serializable
data class Update(val scheme: String, val table: List<UpdateRow>)

/** What an engine refused or computed wrongly: of which [layer] and [operator], both empty where it is not known. */
@Serializable
data class CertificateFailure(val layer: String, val operator: String, val what: String, val advice: String = "")

/**
 * What came of running the program on an engine beside the CPU, on the machine where it was built.
 *
 * @property on the engine as it was asked for: `gpu`, `hexagon:SM8650`.
 * @property version of the [engine]; the certificate says nothing of another one.
 * @property ok whether the engine takes every operator ([whole]) and computes every result rightly.
 * @property lossError relative to the CPU's; null where the engine gave no number.
 */
@Serializable
data class Certificate(
    val on: String,
    val engine: String,
    val version: String,
    val driver: String,
    val date: String,
    val steps: Int,
    val ok: Boolean,
    val whole: Boolean,
    val precision: String,
    @SerialName("loss_error") val lossError: Double? = null,
    @SerialName("update_error") val updateError: Double? = null,
    @SerialName("output_error") val outputError: Double? = null,
    val floor: Double? = null,
    val failures: List<CertificateFailure> = emptyList(),
)

/**
 * A learning rate that the program computes itself.
 *
 * @property description in words.
 * @property zeroFrom the number of the step, from 0, from which on no update changes anything; null where that is never,
 *   or not known.
 * @property counter the state tensor of one number that counts these steps; null where [zeroFrom] needs none.
 */
@Serializable
data class RunningRate(
    val description: String,
    @SerialName("zero_from") val zeroFrom: Int? = null,
    val counter: String? = null,
)

/**
 * What a program says about itself, checked.
 *
 * @property graphHash of the operators, constants and built weights of this very program.
 * @property batch rows of one step.
 * @property microBatch rows of one call, [batch] where all of a step come at once. Else a step is a call of
 *   `accumulate` for each micro-batch, with weights that sum to one over the whole step, and one of `apply`. Of
 *   `gradients` the caller adds up what it gives, each by its share of the weight of the whole step.
 * @property loss its name, or that of each output which has one; see [losses].
 * @property labels names of the classes, in order.
 * @property preprocessing how the app makes an input, in terms of its own.
 * @property learningRate of a training that is given none; null where the rate runs in the program.
 * @property runningRate the rate that runs in the program, where one does; a plan's `rateScale` multiplies it.
 * @property choices the weights of which chosen channels train.
 * @property lossScale what `gradients` gives is this many times the gradient; `apply` takes it so.
 * @property certificates on which engines the step was run, the last time of each.
 * @property targetLabels the labels that there are, by the name of each target that holds labels.
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
    val preprocessing: JsonObject? = null,
    val frozen: Frozen = Frozen.FLOAT32,
    @SerialName("learning_rate") val learningRate: Double? = null,
    @SerialName("running_rate") val runningRate: RunningRate? = null,
    val choices: List<ChosenChannels> = emptyList(),
    @SerialName("loss_scale") val lossScale: Double = 1.0,
    val certificates: List<Certificate> = emptyList(),
    @SerialName("target_labels") val targetLabels: Map<String, TargetLabels> = emptyMap(),
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

    /** How many answers a classifier chooses from; null when the only target is no label. */
    val classes: Int? get() = targetLabels[TARGET]?.count

    /** Whether the rows of a step come in several calls. */
    val accumulates: Boolean get() = microBatch < batch

    /** The signature that takes the rows of a step. */
    val step: Signature get() = signatures.getValue(stepName)

    /** The signature that changes what trains. */
    val updating: Signature get() = signatures.getValue(updatingName)

    /** What [step] is called. */
    val stepName: String
        get() = when {
            state == StateKind.SPLIT -> "gradients"
            accumulates -> "accumulate"
            else -> "train"
        }
    internal val updatingName: String get() = if (stepName == "train") "train" else UPDATE

    /** The signatures for an accelerator: all but the update of a split program. */
    val accelerated: Set<String> get() = if (state == StateKind.SPLIT) signatures.keys - UPDATE else signatures.keys

    val evaluate: Signature? get() = signatures["evaluate"]
    val fisher: Signature? get() = signatures["fisher"]
    val infer: Signature get() = signatures.getValue("infer")

    /** The signatures that give the model's outputs, by the rows that each takes, the fewest first. */
    internal val infers: Map<Int, String> by lazy {
        val names = signatures.keys.filter { it == "infer" || rowsToInfer(it) != null }
        names.associateBy { signatures.getValue(it).taking(Role.INPUT)[0].shape[0] }.toSortedMap()
    }
}

/** The rows of `infer_<rows>`; null for any other name of a signature. */
internal fun rowsToInfer(name: String): Int? =
    Regex("infer_([1-9][0-9]{0,8})").matchEntire(name)?.let { it.groupValues[1].toInt() }

/** The signature that updates what trains, where another takes the rows of a step. */
internal const val UPDATE = "apply"

/** What the only target is called; several are called this, a slash and a name of their own. */
internal const val TARGET = "y"

private val JsonElement.text: String get() = (this as JsonPrimitive).content

/** Elements of a shape; never overflows into something small. */
internal fun List<Int>.product(): Long = fold(1L) { product, d ->
    if (product > Int.MAX_VALUE) Long.MAX_VALUE else product * d
}
