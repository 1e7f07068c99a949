// Written by scripts/manifest from converter/program/manifest/schema.toml: change that, and run it.

package org.pocketune.trainer

/** The format that is known here. */
internal const val MANIFEST_FORMAT = "pocketune/1"

/** No manifest is larger. */
internal const val MAX_MANIFEST_BYTES = 4194304

/** No tensor takes more bytes: a flatbuffer ends at 2 GiB. */
internal const val MAX_TENSOR_BYTES = 2147483647

/** By how much a number may miss its bounds: what rounding does. */
internal const val SLACK = 1e-06

/** What the name of a tensor of the role `gradient` begins with. */
internal const val GRADIENT = "gradient/"

/** What the name of a tensor of the role `mask` begins with. */
internal const val MASK = "mask/"

/** What the name of a tensor of the role `fisher` begins with. */
internal const val FISHER = "fisher/"

/**
 * What a role says of a tensor.
 *
 * @property isInput whether it stands among the inputs.
 * @property isOutput whether it stands among the outputs.
 * @property isRows whether its first axis is the rows of a call that trains.
 * @property isNamed whether it is called as its role is.
 * @property isState whether it is a tensor of the state, by its name behind the prefix.
 * @property size of the vector that it is: "1", "rows"; null where it is any tensor.
 */
internal class RoleRule(
    val isInput: Boolean = false,
    val isOutput: Boolean = false,
    val isRows: Boolean = false,
    val isNamed: Boolean = false,
    val isState: Boolean = false,
    val dtype: Dtype? = null,
    val size: String? = null,
    val prefix: String = "",
)

internal val ROLES: Map<Role, RoleRule> = mapOf(
    Role.INPUT to RoleRule(isInput = true, isRows = true),
    Role.TARGET to RoleRule(isInput = true, isRows = true),
    Role.WEIGHT to RoleRule(isInput = true, isRows = true, isNamed = true, dtype = Dtype.FLOAT32, size = "rows"),
    Role.LEARNING_RATE to RoleRule(isInput = true, isNamed = true, dtype = Dtype.FLOAT32, size = "1"),
    Role.STATE to RoleRule(isInput = true, isOutput = true, isState = true),
    Role.GRADIENT to RoleRule(isInput = true, isOutput = true, isState = true, prefix = "gradient/"),
    Role.TICK to RoleRule(isInput = true, isNamed = true, dtype = Dtype.FLOAT32, size = "1"),
    Role.LOSS to RoleRule(isOutput = true, isNamed = true, dtype = Dtype.FLOAT32, size = "1"),
    Role.ROW_LOSSES to RoleRule(isOutput = true, isRows = true, isNamed = true, dtype = Dtype.FLOAT32, size = "rows"),
    Role.CORRECT to RoleRule(isOutput = true, isNamed = true, dtype = Dtype.FLOAT32, size = "1"),
    Role.FIGURE to RoleRule(isOutput = true, dtype = Dtype.FLOAT32, size = "1"),
    Role.MASK to RoleRule(isOutput = true, dtype = Dtype.FLOAT32, prefix = "mask/"),
    Role.OUTPUT to RoleRule(isOutput = true),
    Role.FISHER to RoleRule(isOutput = true, prefix = "fisher/"),
    Role.FINITE to RoleRule(isOutput = true, isNamed = true, dtype = Dtype.FLOAT32, size = "1"),
    Role.DONE to RoleRule(isOutput = true, isNamed = true, dtype = Dtype.FLOAT32, size = "1"),
)

/**
 * What a signature takes and gives.
 *
 * @property one roles of which it has one tensor each.
 * @property some roles of which it has one tensor or more.
 * @property rows "call": those of a call that trains; "own": its own, the same in all inputs.
 * @property same roles of which it takes what the step takes, but for the rows.
 */
internal class SignatureRule(
    val one: Set<Role> = emptySet(),
    val some: Set<Role> = emptySet(),
    val rows: String? = null,
    val same: Set<Role> = emptySet(),
)

internal val SIGNATURES: Map<String, SignatureRule> = mapOf(
    "train" to SignatureRule(one = setOf(Role.WEIGHT, Role.LOSS, Role.LEARNING_RATE), some = setOf(Role.INPUT), rows = "call"),
    "accumulate" to SignatureRule(one = setOf(Role.WEIGHT, Role.LOSS), some = setOf(Role.INPUT), rows = "call"),
    "gradients" to SignatureRule(one = setOf(Role.WEIGHT, Role.LOSS), some = setOf(Role.INPUT), rows = "call"),
    "train_features" to SignatureRule(one = setOf(Role.WEIGHT, Role.LOSS, Role.LEARNING_RATE), some = setOf(Role.INPUT), rows = "call", same = setOf(Role.TARGET)),
    "accumulate_features" to SignatureRule(one = setOf(Role.WEIGHT, Role.LOSS), some = setOf(Role.INPUT), rows = "call", same = setOf(Role.TARGET)),
    "gradients_features" to SignatureRule(one = setOf(Role.WEIGHT, Role.LOSS), some = setOf(Role.INPUT), rows = "call", same = setOf(Role.TARGET)),
    "evaluate_features" to SignatureRule(one = setOf(Role.WEIGHT, Role.LOSS), some = setOf(Role.INPUT), rows = "call", same = setOf(Role.TARGET)),
    "infer_features" to SignatureRule(some = setOf(Role.INPUT, Role.OUTPUT), rows = "own"),
    "apply" to SignatureRule(one = setOf(Role.LEARNING_RATE)),
    "evaluate" to SignatureRule(one = setOf(Role.WEIGHT, Role.LOSS), some = setOf(Role.INPUT), rows = "call", same = setOf(Role.INPUT, Role.TARGET)),
    "infer" to SignatureRule(some = setOf(Role.INPUT, Role.OUTPUT), rows = "own", same = setOf(Role.INPUT)),
    "infer_n" to SignatureRule(some = setOf(Role.INPUT, Role.OUTPUT), rows = "own", same = setOf(Role.INPUT)),
    "features" to SignatureRule(some = setOf(Role.INPUT, Role.OUTPUT), rows = "own", same = setOf(Role.INPUT)),
    "prefill" to SignatureRule(some = setOf(Role.INPUT, Role.OUTPUT), rows = "own"),
    "decode" to SignatureRule(some = setOf(Role.INPUT, Role.OUTPUT), rows = "own"),
    "fisher" to SignatureRule(one = setOf(Role.WEIGHT), some = setOf(Role.INPUT, Role.FISHER), rows = "call", same = setOf(Role.INPUT, Role.TARGET)),
    "save" to SignatureRule(one = setOf(Role.TICK)),
    "restore" to SignatureRule(one = setOf(Role.DONE)),
    "initialize" to SignatureRule(one = setOf(Role.TICK, Role.DONE)),
)

/** Throws [FieldException] where a field of a record, or of one in it, is beyond its limits. */
internal object ManifestFields {
    fun check(where: String, it: TensorSpec) {
        checkShape("$where.shape", it.shape, rank = 1, elementBytes = it.dtype.bytes)
    }

    fun check(where: String, it: Signature) {
        checkCount("$where.inputs", it.inputs.size, least = 1.0)
        checkUnique("$where.inputs", it.inputs.map { each -> each.name })
        it.inputs.forEachIndexed { i, each -> check("$where.inputs[$i]", each) }
        checkCount("$where.outputs", it.outputs.size, least = 1.0)
        checkUnique("$where.outputs", it.outputs.map { each -> each.name })
        it.outputs.forEachIndexed { i, each -> check("$where.outputs[$i]", each) }
    }

    fun check(where: String, it: ModelTensor) {
        checkShape("$where.shape", it.shape, rank = 0, elementBytes = 1)
    }

    fun check(where: String, it: StateTensor) {
        checkShape("$where.shape", it.shape, rank = 1, elementBytes = it.dtype.bytes)
        checkOneOf("$where.dtype", it.dtype, setOf(Dtype.FLOAT32, Dtype.INT32, Dtype.BOOL, Dtype.INT8))
        it.model?.let { set -> check("$where.model", set) }
    }

    fun check(where: String, it: Scales) {
        checkNumber("$where.axis", it.axis, least = 0.0)
    }

    fun check(where: String, it: Piece) {
        it.scales?.let { set -> check("$where.scales", set) }
    }

    fun check(where: String, it: FrozenPart) {
        checkPattern("$where.entry", it.entry, "pocketune\\.frozen/[\\s\\S]*")
        checkShape("$where.shape", it.shape, rank = 1, elementBytes = 1)
    }

    fun check(where: String, it: ParameterSpec) {
        checkShape("$where.shape", it.shape, rank = 0, elementBytes = it.dtype.bytes)
        checkOneOf("$where.dtype", it.dtype, setOf(Dtype.FLOAT32, Dtype.INT32, Dtype.BOOL, Dtype.INT8))
        checkCount("$where.pieces", it.pieces.size, least = 1.0)
        it.pieces.forEachIndexed { i, each -> check("$where.pieces[$i]", each) }
        it.frozen?.let { set -> check("$where.frozen", set) }
    }

    fun check(where: String, it: ChosenChannels) {
        checkNumber("$where.channels", it.channels, least = 1.0)
    }

    fun check(where: String, it: ClassHead) {
        checkNumber("$where.axis", it.axis, least = 0.0, most = 1.0)
        checkNumber("$where.own", it.own, least = 0.0)
        checkNumber("$where.zero_point", it.zeroPoint)
    }

    fun check(where: String, it: LabelledOutput) {
        checkNumber("$where.place", it.place, least = 0.0, most = 4095.0)
    }

    fun check(where: String, it: TargetLabels) {
        it.count?.let { set -> checkNumber("$where.count", set, least = 1.0) }
        it.ignored?.let { set -> checkNumber("$where.ignored", set) }
    }

    fun check(where: String, it: RunningRate) {
        it.zeroFrom?.let { set -> checkNumber("$where.zero_from", set, least = 0.0) }
    }

    fun check(where: String, it: Certificate) {
        checkPattern("$where.on", it.on, "gpu|web|android|tflm|hexagon:[A-Z0-9]+|[a-z0-9]+(-[a-z0-9]+)+(:[A-Za-z0-9]+)?")
        checkPattern("$where.date", it.date, "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
        checkNumber("$where.steps", it.steps, least = 1.0)
        it.lossError?.let { set -> checkNumber("$where.loss_error", set, least = 0.0) }
        it.updateError?.let { set -> checkNumber("$where.update_error", set, least = 0.0) }
        it.outputError?.let { set -> checkNumber("$where.output_error", set, least = 0.0) }
        it.floor?.let { set -> checkNumber("$where.floor", set, least = 0.0) }
        checkCount("$where.failures", it.failures.size, most = 20.0)
    }

    fun check(where: String, it: FrozenWeight) {
        checkShape("$where.shape", it.shape, rank = 0, elementBytes = 1)
        checkPattern("$where.digest", it.digest, "[0-9a-f]{16}")
    }

    fun check(where: String, it: Identity) {
        checkPattern("$where.update", it.update, "[0-9a-f]{16}")
        checkPattern("$where.forward", it.forward, "[0-9a-f]{16}")
        it.frozen.forEachIndexed { i, each -> check("$where.frozen[$i]", each) }
        checkPattern("$where.int8", it.int8, "([0-9a-f]{16})?")
        checkNumber("$where.version", it.version)
    }

    fun check(where: String, it: Manifest) {
        checkPattern("$where.format", it.format, "pocketune/1")
        checkPattern("$where.graph_hash", it.graphHash, "[0-9a-f]{64}")
        checkNumber("$where.batch", it.batch, least = 1.0)
        checkNumber("$where.micro_batch", it.microBatch, least = 1.0)
        checkLoss("$where.loss", it.loss)
        for ((name, each) in it.signatures) check("$where.signatures.$name", each)
        checkUnique("$where.state_tensors", it.stateTensors.map { each -> each.tensor })
        it.stateTensors.forEachIndexed { i, each -> check("$where.state_tensors[$i]", each) }
        checkUnique("$where.parameters", it.parameters.map { each -> each.name })
        it.parameters.forEachIndexed { i, each -> check("$where.parameters[$i]", each) }
        checkUnique("$where.labelled", it.labelled.map { each -> each.output })
        it.labelled.forEachIndexed { i, each -> check("$where.labelled[$i]", each) }
        it.learningRate?.let { set -> checkNumber("$where.learning_rate", set, least = 0.0) }
        it.runningRate?.let { set -> check("$where.running_rate", set) }
        checkUnique("$where.choices", it.choices.map { each -> each.weight })
        checkUnique("$where.choices", it.choices.map { each -> each.indices })
        it.choices.forEachIndexed { i, each -> check("$where.choices[$i]", each) }
        checkNumber("$where.loss_scale", it.lossScale, least = 5.960464477539063e-08, most = 16777216.0)
        checkNumber("$where.keep_base", it.keepBase, least = 0.0, most = 1000000.0)
        it.rowClipping?.let { set -> checkNumber("$where.row_clipping", set, least = 0.0, most = 1000000.0) }
        checkUnique("$where.certificates", it.certificates.map { each -> each.on })
        it.certificates.forEachIndexed { i, each -> check("$where.certificates[$i]", each) }
        for ((name, each) in it.targetLabels) check("$where.target_labels.$name", each)
        checkCount("$where.poles", it.poles.size, most = 8.0)
        it.head?.let { set -> check("$where.head", set) }
        it.identity?.let { set -> check("$where.identity", set) }
    }
}
