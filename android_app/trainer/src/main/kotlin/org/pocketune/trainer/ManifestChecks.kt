package org.pocketune.trainer

import java.nio.ByteBuffer
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive

private const val FORMAT = "pocketune/1"
private const val FROZEN = "pocketune.frozen/"

/** What a gradient is called, and what gradients are added up in: this, and the state tensor that it belongs to. */
internal const val GRADIENT = "gradient/"

/** What the mask of an output is called: this, and the name of the output. */
private const val MASK = "mask/"

/** What the Fisher information of a weight's channels is called: this, and the weight's name. */
internal const val FISHER = "fisher/"

/** No manifest is larger. */
private const val MAX_BYTES = 4 shl 20

/** No more failures of a certificate are kept. */
private const val MOST_FAILURES = 20
private val CERTIFIED_ON = Regex("gpu|web|android|hexagon:[A-Z0-9]+")
private val UTC = Regex("\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}Z")

private val INPUT_ROLES =
    setOf(Role.INPUT, Role.TARGET, Role.WEIGHT, Role.LEARNING_RATE, Role.STATE, Role.GRADIENT, Role.TICK)
private val OUTPUT_ROLES =
    setOf(
        Role.LOSS,
        Role.CORRECT,
        Role.FIGURE,
        Role.MASK,
        Role.OUTPUT,
        Role.FISHER,
        Role.STATE,
        Role.GRADIENT,
        Role.DONE,
    )
private val ROW_ROLES = setOf(Role.INPUT, Role.TARGET, Role.WEIGHT)

/** Roles that every program gives the same name, float32 and one number; `weight` has one a row. */
private val NAMED_ROLES = setOf(Role.WEIGHT, Role.LEARNING_RATE, Role.TICK, Role.LOSS, Role.CORRECT, Role.DONE)

/**
 * A checked manifest from the metadata entry.
 *
 * @throws DamagedProgramException a field is missing, unknown or ill-typed, or two of them contradict each other.
 * @throws NewerProgramException it is of a format that is not known here.
 */
internal fun readManifest(bytes: ByteBuffer): Manifest {
    if (bytes.limit() > MAX_BYTES) fail("${bytes.limit()} bytes, more than $MAX_BYTES")
    val manifest =
        try {
            StrictJson.decode(Manifest.serializer(), bytes)
        } catch (error: SerializationException) {
            val format = formatOf(bytes)
            if (format != null && format != FORMAT) throw newer(format)
            throw DamagedProgramException("manifest: ${error.lastLine()}", error)
        }
    if (manifest.format != FORMAT) throw newer(manifest.format)
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
    NewerProgramException("manifest: format '$format' is not known here, only '$FORMAT': update the app")

/** The rules between the fields. */
private class ManifestChecks(private val manifest: Manifest) {
    private val state = manifest.stateTensors.associateBy { it.tensor }
    private val stepOnFeatures = "${manifest.stepName}_features"
    private val otherInfers = manifest.signatures.keys.filter { rowsToInfer(it) != null }

    fun check() {
        if (!Regex("[0-9a-f]{64}").matches(manifest.graphHash)) fail("graph_hash: expected 64 hexadecimal digits")
        if (manifest.batch < 1) fail("batch: must be at least 1, got ${manifest.batch}")
        if (manifest.microBatch !in 1..manifest.batch || manifest.batch % manifest.microBatch != 0) {
            fail("micro_batch: ${manifest.microBatch} is no part of a batch of ${manifest.batch}")
        }
        unique("state_tensors", manifest.stateTensors.map { it.tensor })
        unique("parameters", manifest.parameters.map { it.name })
        for (tensor in manifest.stateTensors) {
            shape("state_tensors.${tensor.tensor}", tensor.shape, tensor.dtype)
            if (tensor.model?.gives(tensor.shape) == false) fail("state_tensors.${tensor.tensor}: its view gives another shape")
        }
        if (manifest.identity?.isGood == false) fail("identity: expected digests of 16 hexadecimal digits")
        losses()
        signatures()
        manifest.parameters.forEach(::parameter)
        unique("certificates", manifest.certificates.map { it.on })
        manifest.certificates.forEach(::certificate)
    }

    private fun certificate(certificate: Certificate) {
        val where = "certificates.${certificate.on}"
        if (!CERTIFIED_ON.matches(certificate.on)) fail("$where: no engine that is known here")
        if (!UTC.matches(certificate.date)) fail("$where: '${certificate.date}' is no time in UTC")
        if (certificate.steps < 1) fail("$where: ${certificate.steps} steps")
        val errors = with(certificate) { listOf(lossError, updateError, outputError, floor) }
        if (errors.any { it != null && it < 0 }) fail("$where: an error below zero")
        val isBad = !certificate.whole || certificate.failures.isNotEmpty() || certificate.updateError == null
        if (certificate.ok && isBad) fail("$where: it says that all is well, and that something is not")
        if (certificate.failures.size > MOST_FAILURES) fail("$where: more than $MOST_FAILURES failures")
    }

    private fun signatures() {
        names()
        manifest.signatures.forEach { (name, signature) -> signature("signatures.$name", signature) }
        val rows = setOf(Role.WEIGHT, Role.LOSS)
        val step = if (manifest.stepName == manifest.updatingName) rows + Role.LEARNING_RATE else rows
        for (name in listOf(manifest.stepName, stepOnFeatures)) roles(name, one = step, several = setOf(Role.INPUT))
        roles(UPDATE, one = setOf(Role.LEARNING_RATE), several = emptySet())
        roles("evaluate", one = rows, several = setOf(Role.INPUT))
        roles("fisher", one = setOf(Role.WEIGHT), several = setOf(Role.INPUT, Role.FISHER))
        for (name in listOf("infer", "features") + otherInfers) {
            roles(name, one = emptySet(), several = setOf(Role.INPUT, Role.OUTPUT))
        }
        for (name in listOf(manifest.stepName, stepOnFeatures, "evaluate", "fisher")) {
            for (spec in manifest.signatures[name]?.inputs.orEmpty()) {
                if (spec.role in ROW_ROLES && spec.shape[0] != manifest.microBatch) {
                    fail("signatures.$name.${spec.name}: first axis ${spec.shape[0]}, a call takes ${manifest.microBatch}")
                }
            }
        }
        for (name in listOf("infer", "features") + otherInfers) {
            val firstAxes = manifest.signatures[name]?.taking(Role.INPUT)?.map { it.shape[0] } ?: continue
            if (firstAxes.toSet().size != 1) fail("signatures.$name: the first axes of its inputs differ")
        }
        for (name in otherInfers) {
            val signature = manifest.signatures.getValue(name)
            if (signature.taking(Role.INPUT)[0].shape[0] != rowsToInfer(name)) fail("signatures.$name: it takes other rows")
            if (results(signature) != results(manifest.infer)) {
                fail("signatures.$name: what it gives is not what infer gives")
            }
        }
        targets()
        // What a model takes is the same for all, but for the number of rows.
        val same = listOf("evaluate", "fisher").flatMap { listOf(it to Role.INPUT, it to Role.TARGET) }
        for ((name, role) in same + (listOf("infer", "features") + otherInfers).map { it to Role.INPUT }) {
            val signature = manifest.signatures[name] ?: continue
            if (rows(signature, role) != rows(manifest.step, role)) {
                fail("signatures.$name: what it takes of role ${role.label} is not what ${manifest.stepName} takes")
            }
        }
        features()
        rate()
        split()
        gradients()
        choices()
        when (manifest.state) {
            StateKind.VARIABLES -> {
                allState("save", manifest.signatures.getValue("save").giving(Role.STATE))
                allState("restore", manifest.signatures.getValue("restore").taking(Role.STATE))
            }
            StateKind.STATELESS -> allState(manifest.updatingName, manifest.updating.taking(Role.STATE))
            StateKind.SPLIT -> Unit
        }
    }

    private fun losses() {
        val each = (manifest.loss as? JsonObject)?.values ?: listOf(manifest.loss)
        if (each.isEmpty() || each.any { it !is JsonPrimitive || !it.isString }) fail("loss: expected a name, or one by output")
    }

    /** One is `y`, several are `y/...`, and some losses take none; losses and labels are those of the targets. */
    private fun targets() {
        val targets = manifest.step.taking(Role.TARGET)
        val names = targets.map { it.name }
        val labelled = targets.filter { it.dtype == Dtype.INT32 }.map { it.name }
        manifest.targetLabels.forEach { (name, labels) ->
            if (name !in labelled || labels.count < 1) {
                fail("target_labels.$name: ${labels.count} labels, or no int32 target of that name")
            }
        }
        if (names != listOf(TARGET) && !names.all { it.startsWith("$TARGET/") }) fail("the targets are $names")
        if (manifest.loss !is JsonObject) return
        val owners = names.map { name -> manifest.losses.keys.firstOrNull { "$name/".startsWith("$it/") } }
        if (owners.toSet() != manifest.losses.keys) fail("loss: those of ${manifest.losses.keys}, and the targets are $names")
    }

    private fun names() {
        val moves = if (manifest.state == StateKind.VARIABLES) setOf("save", "restore", "initialize") else emptySet()
        val onFeatures = if ("features" in manifest.signatures) setOf(stepOnFeatures) else emptySet()
        val wanted = setOf(manifest.stepName, manifest.updatingName, "infer") + moves + onFeatures
        for (name in wanted) {
            if (name !in manifest.signatures) fail("signatures: '$name' is missing: build with --signatures train,infer,...")
        }
        val others = manifest.signatures.keys - wanted - setOf("evaluate", "features", "fisher") - otherInfers.toSet()
        others.firstOrNull()?.let { fail("signatures: '$it' is none of such a program") }
    }

    /** What the frozen first layers give is what the step on it takes. */
    private fun features() {
        val given = manifest.signatures["features"]?.giving(Role.OUTPUT) ?: return
        fun facts(specs: List<TensorSpec>) = specs.map { Triple(it.name, it.shape, it.dtype) }
        if (facts(given) != facts(manifest.signatures.getValue(stepOnFeatures).taking(Role.INPUT))) {
            fail("signatures.$stepOnFeatures: its inputs are not what features gives")
        }
    }

    /** Each has a list of channels and a change of its own, and `fisher` weighs all of them. */
    private fun choices() {
        val choices = manifest.choices
        unique("choices", choices.map { it.weight })
        unique("choices", choices.map { it.indices })
        for (choice in choices) {
            val where = "choices.${choice.weight}"
            val shape = state[choice.indices]?.takeIf { it.dtype == Dtype.INT32 }?.shape
            if (shape?.size != 1) fail("$where: '${choice.indices}' is no list of channels in state_tensors")
            if (shape[0] > choice.channels) fail("$where: ${shape[0]} of ${choice.channels} channels")
            if (manifest.parameters.none { it.name == choice.change }) fail("$where: '${choice.change}' is not in parameters")
        }
        val given = manifest.fisher?.giving(Role.FISHER) ?: return
        val weighed = given.map { Triple(it.name, it.shape, it.dtype) }.toSet()
        if (weighed != choices.map { Triple(FISHER + it.weight, listOf(it.channels), Dtype.FLOAT32) }.toSet()) {
            fail("signatures.fisher: what it gives is not one number for each channel of the choices")
        }
    }

    /** One learning rate: a number, or one that runs in the program and counts by the state. */
    private fun rate() {
        val (rate, running) = manifest.learningRate to manifest.runningRate
        if ((rate == null) == (running == null)) {
            fail(
                "learning_rate: it is a number, or running_rate says how it runs in the program, one of both; programs of " +
                    "an older Pocketune say neither: build it again",
            )
        }
        if (rate != null && !(rate.isFinite() && rate >= 0)) fail("learning_rate: $rate is none")
        if (running?.zeroFrom != null && running.zeroFrom < 0) {
            fail("running_rate.zero_from: ${running.zeroFrom} is no number of a step")
        }
        val counter = running?.counter ?: return
        if (state[counter]?.let { it.shape == listOf(1) && it.dtype == Dtype.FLOAT32 } != true) {
            fail("running_rate.counter: '$counter' is no number of the state")
        }
    }

    /** What the two halves of a split step change of the state; the scale of what they pass. */
    private fun split() {
        val scale = manifest.lossScale
        val isPowerOfTwo = scale > 0 && scale.isFinite() && scale == Math.scalb(1.0, Math.getExponent(scale))
        if (!isPowerOfTwo || (scale != 1.0 && manifest.state != StateKind.SPLIT)) {
            fail("loss_scale: $scale is no power of two, or not for a program of this kind")
        }
        if (manifest.state != StateKind.SPLIT) return
        val updated = movedBy(manifest.updatingName)
        (trained() - updated).firstOrNull()?.let {
            fail("signatures: ${manifest.updatingName} does not update '$it'")
        }
        (movedBy(manifest.stepName) intersect updated).firstOrNull()?.let {
            fail("signatures: ${manifest.stepName} and ${manifest.updatingName} both change '$it'")
        }
    }

    /** The state tensors that a signature gives. */
    private fun movedBy(signature: String): Set<String> =
        manifest.signatures.getValue(signature).giving(Role.STATE).map { it.name }.toSet()

    /** The state tensors that have a gradient, or as moving averages a batch's statistics in the place of one. */
    private fun trained(): Set<String> {
        val chosen = manifest.choices.map { it.indices }
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
        for ((name, signature) in manifest.signatures) {
            fun check(side: String, specs: List<TensorSpec>, isHere: Boolean) {
                if (specs.map { it.name }.toSet() != (if (isHere) trained else emptySet())) {
                    fail("signatures.$name: the gradients among its $side are not those of what trains")
                }
            }
            check("inputs", signature.taking(Role.GRADIENT), name in taking)
            check("outputs", signature.giving(Role.GRADIENT), name in giving)
        }
    }

    private fun roles(name: String, one: Set<Role>, several: Set<Role>) {
        val found = manifest.signatures[name]?.let { it.inputs + it.outputs }?.map { it.role } ?: return
        val missed = one.firstOrNull { role -> found.count { it == role } != 1 }
        if (missed != null) fail("signatures.$name: takes one tensor of role ${missed.label}")
        several.firstOrNull { it !in found }?.let { fail("signatures.$name: nothing of role ${it.label}") }
    }

    private fun rows(signature: Signature, role: Role) =
        signature.taking(role).map { Triple(it.name, it.shape.drop(1), it.dtype) }.toSet()

    private fun results(signature: Signature) =
        signature.giving(Role.OUTPUT).map { Triple(it.name, it.shape.drop(1), it.dtype) }

    private fun allState(name: String, specs: List<TensorSpec>) {
        if (specs.map { it.name }.toSet() != state.keys) {
            fail("signatures.$name: its state is not the tensors of state_tensors")
        }
    }

    private fun signature(where: String, signature: Signature) {
        for ((side, specs) in listOf("inputs" to signature.inputs, "outputs" to signature.outputs)) {
            if (specs.isEmpty()) fail("$where: no $side")
            unique("$where.$side", specs.map { it.name })
            specs.forEach { tensor("$where.${it.name}", it, isInput = side == "inputs") }
        }
    }

    private fun tensor(where: String, spec: TensorSpec, isInput: Boolean) {
        shape(where, spec.shape, spec.dtype)
        if (spec.role !in (if (isInput) INPUT_ROLES else OUTPUT_ROLES)) fail("$where: role ${spec.role.label} on this side")
        if (spec.role in NAMED_ROLES) {
            if (spec.name != spec.role.label || spec.dtype != Dtype.FLOAT32) {
                fail("$where: role ${spec.role.label} belongs to a float32 of that name")
            }
            val isNumber = spec.shape.size == 1 && (spec.role == Role.WEIGHT || spec.shape[0] == 1)
            if (!isNumber) fail("$where: bad shape ${spec.shape}")
        }
        if (spec.role == Role.MASK && (spec.dtype != Dtype.FLOAT32 || !spec.name.startsWith(MASK))) {
            fail("$where: a mask is of float32 and called $MASK..., not $spec")
        }
        if (spec.role == Role.FIGURE && (spec.dtype != Dtype.FLOAT32 || spec.shape != listOf(1))) {
            fail("$where: a figure is one float32, not $spec")
        }
        val stored = when (spec.role) {
            Role.STATE -> state[spec.name]
            Role.GRADIENT -> state[spec.name.removePrefix(GRADIENT)]
            else -> return
        }
        if (stored?.shape != spec.shape || stored.dtype != spec.dtype) fail("$where: does not agree with state_tensors")
    }

    private fun parameter(parameter: ParameterSpec) {
        val where = "parameters.${parameter.name}"
        shape(where, parameter.shape, parameter.dtype, leastRank = 0)
        if (parameter.pieces.isEmpty()) fail("$where: no pieces")
        for (piece in parameter.pieces) {
            val stored = state[piece.tensor] ?: fail("$where: '${piece.tensor}' is not in state_tensors")
            view(where, parameter, piece.view, stored.shape)
        }
        val frozen = parameter.frozen ?: return
        if (!frozen.entry.startsWith(FROZEN)) fail("$where: the frozen part must be a metadata entry $FROZEN...")
        shape("$where.frozen", frozen.shape, parameter.dtype)
        view(where, parameter, frozen.view, frozen.shape)
    }

    private fun view(where: String, parameter: ParameterSpec, view: List<JsonElement>, stored: List<Int>) {
        val shape = view.fold(parameter.shape) { shape, step ->
            ViewStep.parse(step)?.on(shape) ?: fail("$where: view step $step does not fit $shape")
        }
        if (shape.product() != stored.product()) fail("$where: a view gives $shape, and $stored is stored")
    }

    private fun shape(where: String, shape: List<Int>, dtype: Dtype, leastRank: Int = 1) {
        if (shape.size < leastRank || shape.any { it < 1 } || shape.product() > Int.MAX_VALUE / dtype.bytes) {
            fail("$where: bad shape $shape")
        }
    }

    private fun unique(where: String, names: List<String>) {
        val seen = HashSet<String>()
        names.firstOrNull { !seen.add(it) }?.let { fail("$where: '$it' stands there twice") }
    }
}

private val Role.label: String get() = name.lowercase()

private fun fail(problem: String): Nothing = throw DamagedProgramException("manifest: $problem")
