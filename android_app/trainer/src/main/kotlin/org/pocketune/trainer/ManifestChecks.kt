package org.pocketune.trainer

import java.nio.ByteBuffer
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive

/**
 * A checked manifest from the metadata entry.
 *
 * @throws DamagedProgramException a field is missing, unknown or ill-typed, or two of them contradict each other.
 * @throws NewerProgramException it is of a format that is not known here.
 */
internal fun readManifest(bytes: ByteBuffer): Manifest {
    if (bytes.limit() > MAX_MANIFEST_BYTES) fail("${bytes.limit()} bytes, more than $MAX_MANIFEST_BYTES")
    val manifest =
        try {
            StrictJson.decode(Manifest.serializer(), bytes)
        } catch (error: SerializationException) {
            val format = formatOf(bytes)
            if (format != null && format != MANIFEST_FORMAT) throw newer(format)
            throw DamagedProgramException("manifest: ${error.lastLine()}", error)
        }
    if (manifest.format != MANIFEST_FORMAT) throw newer(manifest.format)
    try {
        ManifestFields.check("manifest", manifest)
    } catch (error: FieldException) {
        throw DamagedProgramException("manifest: ${error.message?.removePrefix("manifest.")}", error)
    }
    ManifestChecks(manifest).check()
    return manifest
}

/** What a manifest that does not fit the records says of its format. */
private fun formatOf(bytes: ByteBuffer): String? =
    try {
        StrictJson.decode(JsonObject.serializer(), bytes)["format"]?.let { (it as? JsonPrimitive)?.content }
    } catch (_: SerializationException) {
        null
    }

private fun newer(format: String) =
    NewerProgramException("manifest: format '$format' is not known here, only '$MANIFEST_FORMAT': update the app")

/** The rules between the fields. */
private class ManifestChecks(private val manifest: Manifest) {
    private val state = manifest.stateTensors.associateBy { it.tensor }
    private val signatures = manifest.signatures
    private val stepOnFeatures = manifest.stepOnFeatures

    /** The signatures that a program of several lengths has for each of them. */
    private val byRows = listOf(manifest.stepName, "evaluate", "infer").filter { it in signatures }

    fun check() {
        if (manifest.microBatch > manifest.batch || manifest.batch % manifest.microBatch != 0) {
            fail("micro_batch: ${manifest.microBatch} is no part of a batch of ${manifest.batch}")
        }
        manifest.stateTensors.forEachIndexed { i, tensor ->
            tensor.model?.let { view("state_tensors[$i].model", it.view, it.shape, tensor.shape) }
        }
        names()
        signatures.forEach { (name, signature) -> signature(name, signature) }
        for ((name, onFeatures) in manifest.behindFeatures) kind("signatures.$onFeatures", name, manifest.calls.getValue(name))
        infers()
        lengths()
        targets()
        features()
        allState()
        rate()
        split()
        gradients()
        choices()
        manifest.head?.let { head(it) }
        manifest.parameters.forEachIndexed { i, parameter -> parameter("parameters[$i]", parameter) }
        integers()
        manifest.certificates.forEachIndexed { i, certificate -> certificate("certificates[$i]", certificate) }
    }

    /** There are the signatures that a step needs, and no other than those of the schema. */
    private fun names() {
        val moves = if (manifest.state == StateKind.VARIABLES) setOf("save", "restore", "initialize") else emptySet()
        val onFeatures = if (FEATURES in signatures) setOf(stepOnFeatures) else emptySet()
        val wanted = setOf(manifest.stepName, manifest.updatingName) + moves + onFeatures
        wanted.firstOrNull { it !in manifest.calls }?.let { fail("signatures: '$it' is missing") }
        val judging = if (FEATURES in signatures) setOf("evaluate$ON_FEATURES", "infer$ON_FEATURES") else emptySet()
        val known = wanted + judging + setOf("evaluate", "infer", FEATURES, "fisher", "prefill", "decode")
        val others = signatures.keys.filter { name ->
            val isInfer = rowsToInfer(name) != null && "infer" in manifest.calls
            val isShorter = atLength(name).run { second != null && first in byRows }
            name !in known && !isInfer && !isShorter
        }
        others.firstOrNull()?.let { fail("signatures: '$it' is none of such a program") }
    }

    /** What the schema says of a signature, and of the roles of its tensors. */
    private fun signature(name: String, signature: Signature) {
        val where = "signatures.$name"
        signature.inputs.forEach { tensor("$where.${it.name}", it, isInput = true) }
        signature.outputs.forEach { tensor("$where.${it.name}", it, isInput = false) }
        kind(where, name, signature)
    }

    /** What the schema says of a kind of signature. */
    private fun kind(where: String, name: String, signature: Signature) {
        val (base, tokens) = atLength(name)
        val rule = SIGNATURES.getValue(if (rowsToInfer(name) == null) base else "infer_n")
        val roles = (signature.inputs + signature.outputs).map { it.role }
        for (role in rule.one) {
            val count = roles.count { it == role }
            if (count != 1) fail("$where: $count tensors of role '${role.label}', and it takes one")
        }
        rule.some.firstOrNull { it !in roles }?.let { fail("$where: nothing of role '${it.label}'") }
        if (rule.rows == "call") {
            val all = signature.inputs + signature.outputs
            all.firstOrNull { ROLES.getValue(it.role).isRows && it.shape[0] != manifest.microBatch }?.let {
                fail("$where.${it.name}: first axis ${it.shape[0]}, and a call takes ${manifest.microBatch}")
            }
        }
        if (rule.rows == "own" && signature.taking(Role.INPUT).map { it.shape[0] }.toSet().size != 1) {
            fail("$where: the first axes of its inputs differ")
        }
        for (role in if (tokens == null) rule.same else emptyList()) {
            if (facts(signature.taking(role), 1).toSet() != facts(manifest.step.taking(role), 1).toSet()) {
                fail("$where: what it takes of role '${role.label}' is not what ${manifest.stepName} takes")
            }
        }
    }

    /** What its role says of a tensor. */
    private fun tensor(where: String, spec: TensorSpec, isInput: Boolean) {
        val (rule, role) = ROLES.getValue(spec.role) to spec.role.label
        if (!(if (isInput) rule.isInput else rule.isOutput)) {
            fail("$where: role '$role' among the ${if (isInput) "inputs" else "outputs"}")
        }
        val isTyped = spec.dtype == (rule.dtype ?: spec.dtype) && spec.name.startsWith(rule.prefix)
        if (rule.isNamed && (spec.name != role || !isTyped)) fail("$where: role '$role' belongs to a ${rule.type} of that name")
        val isSized = rule.size == null || (spec.shape.size == 1 && (rule.size == "rows" || spec.shape[0] == 1))
        if (!isTyped || !isSized) fail("$where: a $role is ${rule.words}, not $spec")
        if (!rule.isState) return
        val stored = state[spec.name.removePrefix(rule.prefix)]
        val passed = if (stored?.dtype == Dtype.INT8) Dtype.UINT8 else stored?.dtype // the bits of int8
        if (stored?.shape != spec.shape || passed != spec.dtype) fail("$where: does not agree with state_tensors")
    }

    /** `infer_<n>` is `infer` for n rows. */
    private fun infers() {
        for ((name, signature) in signatures) {
            val rows = rowsToInfer(name) ?: continue
            if (signature.taking(Role.INPUT)[0].shape[0] != rows) fail("signatures.$name: it takes another number of rows")
            if (facts(signature.giving(Role.OUTPUT), 1) != facts(manifest.infer.giving(Role.OUTPUT), 1)) {
                fail("signatures.$name: what it gives is not what infer gives")
            }
        }
    }

    /** `train_length_<n>` is `train` for rows of n tokens, and all of them are there for each n. */
    private fun lengths() {
        for ((name, signature) in signatures) {
            val (base, length) = atLength(name)
            val tokens = length ?: continue
            byRows.firstOrNull { "${it}_length_$tokens" !in signatures }?.let {
                fail("signatures: '${it}_length_$tokens' is missing")
            }
            val longest = signatures.getValue(base)
            val rows = (signature.taking(Role.INPUT) + signature.taking(Role.TARGET)).map { it.shape.drop(1) }.toSet()
            val isShorter = rows == setOf(listOf(tokens)) && longest.tokens > tokens
            val expected = longest.ofTokens(tokens)
            val isSame = signature.inputs == expected.inputs && signature.outputs == expected.outputs
            if (!isShorter || !isSame) fail("signatures.$name: it is not $base for rows of $tokens tokens")
        }
    }

    /** One is `y`, several are `y/...`, and some losses take none; losses and labels are those of the targets. */
    private fun targets() {
        val targets = manifest.step.taking(Role.TARGET)
        val names = targets.map { it.name }
        if (names != listOf(TARGET) && !names.all { it.startsWith("$TARGET/") }) {
            fail("signatures.${manifest.stepName}: its targets are $names, and neither y nor y/...")
        }
        for ((name, labels) in manifest.targetLabels) {
            val target = targets.firstOrNull { it.name == name } ?: fail("target_labels.$name: no target of that name")
            labels("target_labels.$name", labels, target)
        }
        if (manifest.loss !is JsonObject) return
        val owners = names.map { name -> manifest.losses.keys.firstOrNull { "$name/".startsWith("$it/") } }
        if (owners.toSet() != manifest.losses.keys) fail("loss: those of ${manifest.losses.keys}, and the targets are $names")
    }

    /** A target of its type can hold such labels or numbers. */
    private fun labels(where: String, labels: TargetLabels, target: TensorSpec) {
        val bounds = listOfNotNull(labels.least, labels.most)
        if (target.dtype == Dtype.INT32 && (labels.count == null || bounds.isNotEmpty() || labels.only.isNotEmpty())) {
            fail("$where: an int32 target holds labels from 0 to a count, and no other numbers")
        }
        if (target.dtype == Dtype.FLOAT32 && (labels.masked || labels.ignored != null)) {
            fail("$where: labels are left out, and a float32 target holds none")
        }
        if (target.dtype == Dtype.FLOAT32 && labels.count !in listOf(null, target.shape.last())) {
            fail("$where: ${labels.count} classes, and the target has ${target.shape.last()} along its last axis")
        }
        if (target.dtype == Dtype.BOOL || bounds != bounds.sorted()) {
            fail("$where: there are no such numbers of ${target.dtype}")
        }
    }

    /** What the frozen first layers give is what the signatures on it take. */
    private fun features() {
        val given = signatures[FEATURES]?.giving(Role.OUTPUT) ?: return
        for (whole in listOf(manifest.stepName, "evaluate", "infer")) {
            val name = "$whole$ON_FEATURES"
            val signature = signatures[name] ?: continue
            if (facts(given) != facts(signature.taking(Role.INPUT))) fail("signatures.$name: its inputs are not what features gives")
            if (name != stepOnFeatures && facts(signature.outputs) != facts(manifest.calls.getValue(whole).outputs)) {
                fail("signatures.$name: what it gives is not what $whole gives")
            }
        }
    }

    /** What moves the state moves all of it. */
    private fun allState() {
        val moves = when (manifest.state) {
            StateKind.VARIABLES -> mapOf(
                "save" to signatures.getValue("save").giving(Role.STATE),
                "restore" to signatures.getValue("restore").taking(Role.STATE),
            )
            StateKind.STATELESS -> mapOf(manifest.updatingName to manifest.updating.taking(Role.STATE))
            StateKind.SPLIT -> emptyMap()
        }
        for ((name, specs) in moves) {
            if (specs.map { it.name }.toSet() != state.keys) {
                fail("signatures.$name: its state is not the tensors of state_tensors")
            }
        }
    }

    /** One learning rate: a number, or one that runs in the program and counts by the state. */
    private fun rate() {
        if ((manifest.learningRate == null) == (manifest.runningRate == null)) {
            fail(
                "learning_rate: it is a number, or running_rate says how it runs in the program, one of both; programs of " +
                    "an older Pocketune say neither: build it again",
            )
        }
        val counter = manifest.runningRate?.counter ?: return
        if (state[counter]?.let { it.shape == listOf(1) && it.dtype == Dtype.FLOAT32 } != true) {
            fail("running_rate.counter: '$counter' is no number of the state")
        }
    }

    /** What the two halves of a split step change of the state; the scale of what they pass. */
    private fun split() {
        val (scale, isSplit) = manifest.lossScale to (manifest.state == StateKind.SPLIT)
        if (scale != Math.scalb(1.0, Math.getExponent(scale)) || (scale != 1.0 && !isSplit)) {
            fail("loss_scale: $scale is no power of two, or not for a program of this kind")
        }
        if (!isSplit) return
        val (step, updating) = manifest.stepName to manifest.updatingName
        val updated = movedBy(updating)
        (trained() - updated).firstOrNull()?.let { fail("signatures.$updating: it does not update '$it'") }
        (movedBy(step) intersect updated).firstOrNull()?.let {
            fail("signatures.$step: it changes '$it', and so does $updating")
        }
    }

    /** The state tensors that a signature gives. */
    private fun movedBy(signature: String): Set<String> =
        manifest.calls.getValue(signature).giving(Role.STATE).map { it.name }.toSet()

    /** The state tensors that have a gradient, or as moving averages a batch's statistics in the place of one. */
    private fun trained(): Set<String> {
        val chosen = manifest.choices.map { it.indices } + manifest.redrawn.map { (weight, _) -> weight.pieces[0].tensor }
        // The number of the call, which the forward pass of a split step changes.
        val forward = if (manifest.state == StateKind.SPLIT) movedBy(manifest.stepName) else emptySet()
        return manifest.stateTensors.filter { !it.slot && it.tensor !in chosen }.map { it.tensor }.toSet() - forward
    }

    /** Those of a split step go from one half to the other; a stateless one is handed its accumulators each time. */
    private fun gradients() {
        val trained = trained().map { GRADIENT + it }.toSet()
        val onRows = setOf(manifest.stepName, stepOnFeatures)
        val isSplit = manifest.state == StateKind.SPLIT
        val isPassed = manifest.accumulates && manifest.state == StateKind.STATELESS
        val taking = if (isSplit) setOf(UPDATE) else if (isPassed) onRows + UPDATE else emptySet()
        val giving = if (isSplit || isPassed) onRows else emptySet()
        for ((name, signature) in signatures) {
            fun check(side: String, specs: List<TensorSpec>, isHere: Boolean) {
                if (specs.map { it.name }.toSet() != (if (isHere) trained else emptySet())) {
                    fail("signatures.$name: the gradients among its $side are not those of what trains")
                }
            }
            check("inputs", signature.taking(Role.GRADIENT), atLength(name).first in taking)
            check("outputs", signature.giving(Role.GRADIENT), atLength(name).first in giving)
        }
    }

    /** Each has a list of channels and a change of its own, and `fisher` weighs all of them. */
    private fun choices() {
        manifest.choices.forEachIndexed { i, choice ->
            val where = "choices[$i]"
            val shape = state[choice.indices]?.takeIf { it.dtype == Dtype.INT32 }?.shape
            if (shape?.size != 1) fail("$where: '${choice.indices}' is no list of channels in state_tensors")
            if (shape[0] > choice.channels) fail("$where: ${shape[0]} of ${choice.channels} channels")
            if (manifest.parameters.none { it.name == choice.change }) fail("$where: '${choice.change}' is not in parameters")
            manifest.problemOfRedrawn(choice, shape[0], state)?.let { problem -> fail("$where$problem") }
        }
        val given = manifest.fisher?.giving(Role.FISHER) ?: return
        val weighed = manifest.choices.map { Triple(FISHER + it.weight, listOf(it.channels), Dtype.FLOAT32) }
        if (facts(given).toSet() != weighed.toSet()) {
            fail("signatures.fisher: what it gives is not one number for each channel of the choices")
        }
    }

    /** Its kernel and bias are of the same classes, and names and features of a size with them. */
    private fun head(head: ClassHead) {
        val shapes = manifest.parameters.associate { it.name to it.shape }
        val kernel = shapes[head.kernel].orEmpty()
        val bias = shapes[head.bias].orEmpty()
        if (kernel.size != 2 || bias != listOf(kernel[head.axis]) || head.own > bias[0]) {
            fail("head: '${head.kernel}' and '${head.bias}' are no kernel and bias of ${head.own} classes or more")
        }
        if (head.names != null) {
            val stored = state[head.names]
            if (stored?.shape != listOf(bias[0], 16) || stored.dtype != Dtype.INT32) {
                fail("head.names: '${head.names}' is no int32[${bias[0]}, 16] in state_tensors")
            }
        }
        if (head.takesFeatures) {
            val given = signatures[FEATURES]?.giving(Role.OUTPUT).orEmpty().map { it.shape.drop(1).product() }
            if (given != listOf(kernel[1 - head.axis].toLong())) {
                fail("head: features gives no ${kernel[1 - head.axis]} numbers a row, which '${head.kernel}' takes")
            }
        }
    }

    /** Each state tensor in int8 is a weight's, with scales of its own beside it. */
    private fun integers() {
        val scaled = manifest.parameters.flatMap { it.pieces }.mapNotNull { piece -> piece.scales?.let { piece.tensor to it } }
        for ((tensor, said) in scaled) {
            val scales = state[said.tensor]?.takeIf { it.dtype == Dtype.FLOAT32 && said.axis in state.getValue(tensor).shape.indices }
            if (scales == null || scales.shape.product() !in listOf(1L, state.getValue(tensor).shape[said.axis].toLong())) {
                fail("parameters: '${said.tensor}' is no scales of '$tensor' in state_tensors")
            }
        }
        val ofIntegers = state.values.filter { it.dtype == Dtype.INT8 }.map { it.tensor }
        if (scaled.map { it.first }.sorted() != ofIntegers.sorted() || scaled.distinctBy { it.second.tensor }.size < scaled.size) {
            fail("parameters: each state tensor in int8, and no other, has scales of its own")
        }
        val head = manifest.head ?: return
        manifest.parameters.firstOrNull { it.name in listOf(head.kernel, head.bias) && it.pieces.any { piece -> piece.scales != null } }
            ?.let { fail("head: '${it.name}' is in int8, and a session sets float32 numbers") }
    }

    private fun parameter(where: String, parameter: ParameterSpec) {
        if (parameter.dtype == Dtype.INT8) fail("$where.dtype: a weight in int8 stands for float32 numbers")
        for (piece in parameter.pieces) {
            val stored = state[piece.tensor] ?: fail("$where: '${piece.tensor}' is not in state_tensors")
            view(where, piece.view, parameter.shape, stored.shape)
        }
        parameter.frozen?.let { view("$where.frozen", it.view, parameter.shape, it.shape) }
    }

    private fun view(where: String, view: List<JsonElement>, shape: List<Int>, stored: List<Int>) {
        val given = view.fold(shape) { now, step ->
            ViewStep.parse(step)?.on(now) ?: fail("$where: view step $step does not fit $now")
        }
        if (given.product() != stored.product()) fail("$where: a view gives $given, and what is stored is $stored")
    }

    private fun certificate(where: String, certificate: Certificate) {
        val isBad = !certificate.whole || certificate.failures.isNotEmpty() || certificate.updateError == null
        if (certificate.ok && isBad) fail("$where: it says that all is well, and that something is not")
    }

    /** What is compared of tensors, in their order, without their first axes. */
    private fun facts(specs: List<TensorSpec>, axes: Int = 0) =
        specs.map { Triple(it.name, it.shape.drop(axes), it.dtype) }
}

private val RoleRule.type: String get() = dtype?.name?.lowercase() ?: "any type"

/** What a tensor of a role is. */
private val RoleRule.words: String
    get() {
        val many = when (size) {
            "1" -> "one "
            "rows" -> "one a row, of "
            else -> "of "
        }
        return many + type + if (prefix.isEmpty()) "" else " and called $prefix..."
    }

private val Role.label: String get() = name.lowercase()

private fun fail(problem: String): Nothing = throw DamagedProgramException("manifest: $problem")
