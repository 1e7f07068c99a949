package org.pocketune.trainer

import java.nio.ByteBuffer
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive

private const val FORMAT = "pocketune/1"
private const val FROZEN = "pocketune.frozen/"

/** No manifest is larger. */
private const val MAX_BYTES = 4 shl 20

private val INPUT_ROLES = setOf(Role.INPUT, Role.TARGET, Role.WEIGHT, Role.LEARNING_RATE, Role.STATE, Role.TICK)
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

    fun check() {
        if (!Regex("[0-9a-f]{64}").matches(manifest.graphHash)) fail("graph_hash: expected 64 hexadecimal digits")
        if (manifest.batch < 1) fail("batch: must be at least 1, got ${manifest.batch}")
        unique("state_tensors", manifest.stateTensors.map { it.tensor })
        unique("parameters", manifest.parameters.map { it.name })
        manifest.stateTensors.forEach { shape("state_tensors.${it.tensor}", it.shape, it.dtype) }
        signatures()
        manifest.parameters.forEach(::parameter)
    }

    private fun signatures() {
        val moves = if (manifest.state == StateKind.VARIABLES) listOf("save", "restore", "initialize") else emptyList()
        for (name in listOf("train", "infer") + moves) {
            if (name !in manifest.signatures) fail("signatures: '$name' is missing: build with --signatures train,infer,...")
        }
        manifest.signatures.forEach { (name, signature) -> signature("signatures.$name", signature) }
        val step = setOf(Role.TARGET, Role.WEIGHT, Role.LOSS)
        roles("train", one = step + Role.LEARNING_RATE, several = setOf(Role.INPUT))
        roles("evaluate", one = step, several = setOf(Role.INPUT))
        roles("infer", one = emptySet(), several = setOf(Role.INPUT, Role.OUTPUT))
        for (name in listOf("train", "evaluate")) {
            for (spec in manifest.signatures[name]?.inputs.orEmpty()) {
                if (spec.role in ROW_ROLES && spec.shape[0] != manifest.batch) {
                    fail("signatures.$name.${spec.name}: first axis ${spec.shape[0]}, and the batch is ${manifest.batch}")
                }
            }
        }
        if (manifest.infer.taking(Role.INPUT).map { it.shape[0] }.toSet().size != 1) {
            fail("signatures.infer: the first axes of its inputs differ")
        }
        // What a model takes is the same for all, but for the number of rows.
        for ((name, role) in listOf("evaluate" to Role.INPUT, "evaluate" to Role.TARGET, "infer" to Role.INPUT)) {
            val signature = manifest.signatures[name] ?: continue
            if (rows(signature, role) != rows(manifest.train, role)) {
                fail("signatures.$name: what it takes of role ${role.label} is not what train takes")
            }
        }
        when (manifest.state) {
            StateKind.VARIABLES -> {
                allState("save", manifest.signatures.getValue("save").giving(Role.STATE))
                allState("restore", manifest.signatures.getValue("restore").taking(Role.STATE))
            }
            StateKind.STATELESS -> allState("train", manifest.train.taking(Role.STATE))
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
        val isAllowed = if (isInput) spec.role in INPUT_ROLES else spec.role !in INPUT_ROLES || spec.role == Role.STATE
        if (!isAllowed) fail("$where: role ${spec.role.label} on this side")
        if (spec.role in NAMED_ROLES) {
            if (spec.name != spec.role.label || spec.dtype != Dtype.FLOAT32) {
                fail("$where: role ${spec.role.label} belongs to a float32 of that name")
            }
            val isNumber = spec.shape.size == 1 && (spec.role == Role.WEIGHT || spec.shape[0] == 1)
            if (!isNumber) fail("$where: bad shape ${spec.shape}")
        }
        val stored = state[spec.name]
        if (spec.role == Role.STATE && (stored == null || stored.shape != spec.shape || stored.dtype != spec.dtype)) {
            fail("$where: does not agree with state_tensors")
        }
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
