// Written by scripts/manifest from converter/program/manifest/schema.toml: change that, and run it.

package org.pocketune.trainer

import kotlinx.serialization.SerialName
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.JsonElement

/**
 * Type of the elements of a tensor; int8 is that of trained weights, too, and with uint8 and int16 that of kept
 * features, and of what a model is fed whose file takes integers. [bytes]: of one element.
 */
@Serializable
enum class Dtype(val bytes: Int) {
    @SerialName("float32") FLOAT32(4),
    @SerialName("int32") INT32(4),
    @SerialName("bool") BOOL(1),
    @SerialName("int8") INT8(1),
    @SerialName("uint8") UINT8(1),
    @SerialName("int16") INT16(2),
}

/**
 * How a program keeps its state: in the runtime, or passed in and out of every step, which is one call or, where it
 * is split, the gradients by one signature, in the arithmetic of an accelerator, and the update by another, in
 * float32.
 */
@Serializable
enum class StateKind {
    @SerialName("variables") VARIABLES,
    @SerialName("stateless") STATELESS,
    @SerialName("split") SPLIT,
}

/**
 * Element type of the frozen layers, where the target gains by it.
 */
@Serializable
enum class Frozen {
    @SerialName("float32") FLOAT32,
    @SerialName("int8") INT8,
    @SerialName("int4") INT4,
    @SerialName("int4-dynamic") INT4_DYNAMIC,
    @SerialName("int4-blockwise") INT4_BLOCKWISE,
    @SerialName("int4-blockwise-64") INT4_BLOCKWISE_64,
    @SerialName("int4-blockwise-128") INT4_BLOCKWISE_128,
    @SerialName("float16") FLOAT16,
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
    @SerialName("row_losses") ROW_LOSSES,
    @SerialName("correct") CORRECT,
    @SerialName("figure") FIGURE,
    @SerialName("mask") MASK,
    @SerialName("output") OUTPUT,
    @SerialName("fisher") FISHER,
    @SerialName("finite") FINITE,
    @SerialName("done") DONE,
}

/**
 * A state tensor in the model's own terms, which programs of all targets and batch sizes share.
 *
 * @property name of the parameter or slot.
 * @property shape of the whole parameter in the model's own layout; a slot that goes with one has its.
 * @property view how the state tensor is cut out of that.
 */
@Serializable
data class ModelTensor(
    val name: String,
    val shape: List<Int>,
    val view: List<JsonElement>,
)


/**
 * What the integers of a trained weight are multiplied by: a state tensor that holds a number for each index of an
 * axis, or one for all.
 *
 * @property axis of the state tensor of the integers.
 */
@Serializable
data class Scales(
    val tensor: String,
    val axis: Int,
)


/**
 * Where a state tensor lies in the weight that the user knows.
 *
 * @property scales of a state tensor in int8; null where it holds the numbers themselves.
 */
@Serializable
data class Piece(
    val tensor: String,
    val view: List<JsonElement>,
    val scales: Scales? = null,
)


/**
 * Where the frozen part of a weight lies in it, and the metadata entry that holds it, of a shape of its own.
 */
@Serializable
data class FrozenPart(
    val entry: String,
    val shape: List<Int>,
    val view: List<JsonElement>,
)


/**
 * A trained weight by the model's own name, in the model's own layout.
 *
 * @property frozen the part of it that does not train; null where the pieces cover all of it.
 */
@Serializable
data class ParameterSpec(
    val name: String,
    val shape: List<Int>,
    val dtype: Dtype,
    val pieces: List<Piece>,
    val frozen: FrozenPart?,
)


/**
 * A weight that no step changes, with what is added to some of its input channels.
 *
 * @property weight its name.
 * @property channels how many it has.
 * @property indices the state tensor that says which of them, int32, each once.
 * @property change the parameter that is added to these; zero at first.
 * @property product where the weight is state, a parameter, to which a session adds the change before it draws
 *   other channels: the view from its own layout to [..., channels, outputs]. Null where the weight is a constant of
 *   the file.
 */
@Serializable
data class ChosenChannels(
    val weight: String,
    val channels: Int,
    val indices: String,
    val change: String,
    val product: List<JsonElement>? = null,
)


/**
 * The dense layer that tells classes apart, where the runtime may set it without a gradient: classes are nearest to
 * the means of samples, and some may come later.
 *
 * @property kernel the parameter, of two axes.
 * @property bias the parameter [classes].
 * @property axis of the kernel, along which the classes lie.
 * @property own classes of the model itself, the first ones.
 * @property names the state tensor int32 [classes, 16] that says what each is called: the bytes of its name in
 *   UTF-8, and these, four a number, the lowest first; 0 bytes of one that there is not. Null: there is no room for
 *   others.
 * @property takesFeatures whether what `features` gives is what the layer reads.
 * @property scale of features in integers: what they stand for is (feature - zero_point) times it.
 * @property zeroPoint the integer that stands for 0.
 */
@Serializable
data class ClassHead(
    val kernel: String,
    val bias: String,
    val axis: Int,
    val own: Int,
    val names: String? = null,
    @SerialName("takes_features") val takesFeatures: Boolean = false,
    val scale: Double = 1.0,
    @SerialName("zero_point") val zeroPoint: Int = 0,
)


/**
 * An output whose classes the labels name.
 *
 * @property output its name.
 * @property place its place among the model's outputs, from 0; states know it by that, as names of outputs may
 *   change.
 * @property parameters of its last layer, those that the state holds: with other labels they mean something else.
 */
@Serializable
data class LabelledOutput(
    val output: String,
    val place: Int,
    val parameters: List<String>,
)


/**
 * One line of the resolved update scheme: how much of a weight trains.
 */
@Serializable
data class UpdateRow(
    val parameter: String,
    val fraction: Double,
    val why: String,
)


/**
 * The resolved update scheme: which weights train.
 */
@Serializable
data class Update(
    val scheme: String,
    val table: List<UpdateRow>,
)


/**
 * What a loss takes for a target: labels of classes where it is of int32, numbers where it is of float32.
 *
 * @property count how many classes there are: labels go from 0 to one less, and of numbers there is one a class
 *   along the last axis; null where numbers tell no classes apart.
 * @property masked whether labels below 0 are left out.
 * @property ignored one more label that is left out, be it among the others or beyond them.
 * @property least the least number; null where there is none.
 * @property most the largest; null where there is none.
 * @property only the only numbers that there are, where these are few.
 * @property advice what to pass in the place of other numbers; empty where nothing is to be said.
 */
@Serializable
data class TargetLabels(
    val count: Int? = null,
    val masked: Boolean = false,
    val ignored: Int? = null,
    val least: Double? = null,
    val most: Double? = null,
    val only: List<Double> = emptyList(),
    val advice: String = "",
)


/**
 * A learning rate that the program computes itself; a step's input `learning_rate` multiplies it.
 *
 * @property description in words.
 * @property zeroFrom the number of the step (0, 1, ...) from which on no update changes anything; null where that
 *   is never, or not known.
 * @property counter the state tensor [1] that counts these steps; null where `zero_from` needs none.
 */
@Serializable
data class RunningRate(
    val description: String,
    @SerialName("zero_from") val zeroFrom: Int? = null,
    val counter: String? = null,
)


/**
 * What an engine refused or computed wrongly.
 *
 * @property layer of the user's model; empty where it is nobody's, or not known.
 * @property operator the builtin; empty where it is not known.
 * @property what what happened, in words.
 * @property advice what to change; empty where there is none.
 */
@Serializable
data class CertificateFailure(
    val layer: String,
    val operator: String,
    val what: String,
    val advice: String = "",
)


/**
 * What came of running a program's signatures on an engine, beside the CPU. An error is the largest difference of a
 * tensor by the largest number that the CPU has for it; null where the engine gave none, or no finite one.
 *
 * @property on the engine as it was asked for: `gpu`, `hexagon:SM8650`, `vendor-npu` of another distribution.
 * @property engine what it is.
 * @property version of it; the certificate says nothing of another one.
 * @property driver what it ran on.
 * @property date when, in UTC.
 * @property steps how many were compared, each from a state of the CPU's.
 * @property ok whether the engine takes every operator and computes every result rightly.
 * @property whole whether it takes every operator.
 * @property precision in which it computes.
 * @property lossError of the worst loss.
 * @property updateError of the worst state tensor.
 * @property outputError of the worst other result.
 * @property floor update_error of the CPU where inputs and state are rounded to the engine's precision; of float16
 *   alone.
 * @property failures what went wrong, the first operators first.
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
 * A weight, or the part of one, that does not train.
 *
 * @property name in the model.
 * @property shape of the whole weight, in the model's own layout.
 * @property digest of the numbers that do not train: the first 16 hexadecimal digits of their sha256.
 */
@Serializable
data class FrozenWeight(
    val name: String,
    val shape: List<Int>,
    val digest: String,
)


/**
 * What two programs must have in common beside their state tensors for one to go on with the other's state. Neither
 * lines, folders, target, batch size, order nor signatures have a part in it.
 *
 * @property optimizer its name, for people.
 * @property update 16 hexadecimal digits of how the optimizer computes an update and its slots, whatever its rates
 *   are.
 * @property forward the same of what the model computes of its inputs and weights, adapters included.
 * @property frozen the weights that do not train, in the order in which the model reads them.
 * @property int8 the same of what became int8, int4 or float16, and how; empty where nothing did.
 * @property version of the way in which `forward` and `update` are computed.
 */
@Serializable
data class Identity(
    val optimizer: String,
    val update: String,
    val forward: String,
    val frozen: List<FrozenWeight>,
    val int8: String,
    val version: Int,
)

