package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * What a state is, or what a program takes for one.
 *
 * @property program graph hash of the program.
 * @property identity what the state belongs to; null where an older Pocketune did not say.
 * @property labels of the classes of each output, in the order of the outputs; none of an output that has none. They end with
 *   the last output that has some.
 * @property choices of the program; a file does not have them.
 * @property built what the program begins with; a file does not have that.
 * @property scales by the tensor of a weight in int8 that of its scales; a file does not have them.
 * @property head the last layer of the program, where the runtime may set it; a file does not have it.
 * @property labelled the outputs of the program that have labels; a file does not have them.
 */
internal class StateSpec(
    val program: String,
    val tensors: List<StateTensor>,
    val identity: Identity? = null,
    val labels: List<List<String>> = emptyList(),
    val choices: List<ChosenChannels> = emptyList(),
    val built: (StateTensor) -> ByteBuffer = { ByteBuffer.allocate(it.byteSize) },
    val scales: Map<String, String> = emptyMap(),
    val head: ClassHead? = null,
    val labelled: List<LabelledOutput> = emptyList(),
) {
    constructor(program: Program) : this(
        program.manifest.graphHash,
        program.manifest.stateTensors,
        program.manifest.identity,
        labelsOf(program.manifest),
        program.manifest.choices,
        program::initial,
        program.manifest.scales,
        program.manifest.head,
        program.manifest.labelled,
    )

    /** How many bytes a file of such a state takes at most. */
    val largest: Long get() = largestFile(tensors)

    /** Whether it is said of a tensor how it is laid out. */
    val saysLayouts: Boolean get() = tensors.any { it.model != null }

    val frozenNames: Set<String> get() = identity?.frozen.orEmpty().map { it.name }.toSet()
}

/** What a state says of the classes of a program's outputs. */
private fun labelsOf(manifest: Manifest): List<List<String>> {
    val places = manifest.labelled.map { it.place }.toSet()
    return List((places.maxOrNull() ?: -1) + 1) { if (it in places) manifest.labels.orEmpty() else emptyList() }
}

/** The tensors of a parameter, and what the optimizer keeps for it alone, of all [tensors] of a state. */
internal fun keptOf(parameter: String, tensors: List<StateTensor>): List<StateTensor> {
    val names = tensors.filter { !it.slot }.map { it.name }
    return tensors.filter { tensor -> names.filter { "/${tensor.name}".endsWith("/$it") }.maxByOrNull { it.length } == parameter }
}

/**
 * A state beside a program.
 *
 * @property tensors those that match, as the program stores them, in its order.
 * @property left the names of those of the program that match none.
 * @property differences between the state's program and this one, in words; none where the state goes on there.
 * @property isProven whether all was compared.
 * @property hasWeights whether more than slots of the optimizer match.
 */
internal class Compared(
    val tensors: List<StoredTensor>,
    val adopted: List<String>,
    val left: List<String>,
    val differences: List<String>,
    val isProven: Boolean,
    val hasWeights: Boolean,
)

/** What a program makes of a state (docs/state-file.md, "Whose state it is"). */
internal fun compare(state: State, here: StateSpec): Compared {
    val there = withLayouts(state, here)
    val (a, b) = there.identity to here.identity
    val isProven = there.program == here.program || a != null && b != null && a.version == b.version
    val differences = differences(there, here)
    val tensors = carried(state.tensors, there, here, isPart = differences.isNotEmpty())
    val taken = tensors.map { it.name }.toSet()
    val hasWeights = here.tensors.any { !it.slot && it.tensor in taken }
    val (adopted, left) = here.tensors.partition { it.tensor in taken }
    return Compared(tensors, adopted.map { it.name }, left.map { it.name }, differences, isProven, hasWeights)
}

/** So many differences of a kind are told; the number of the others is. */
private const val MOST = 3

/** The tensor that says what classes are called, which only programs with room for classes have. */
private const val CLASS_NAMES = "classes/names"

/** What is said of a state that nothing speaks against, and that does not say all. */
internal const val UNPROVEN =
    "it was saved by, or for a program of, an older or another version of Pocketune: its tensors fit this program, and " +
        "whether the frozen weights and the forward computation are the same cannot be told"

/** What makes the state of one program meaningless in another, in words; nothing where it goes on there. */
internal fun differences(there: StateSpec, here: StateSpec): List<String> =
    if (there.program == here.program) emptyList() else ofPrograms(there, here) + relabelled(there, here).map { it.difference }

/** What differs between two programs, whatever their classes are called. */
private fun ofPrograms(there: StateSpec, here: StateSpec): List<String> {
    val found = trained(there, here).toMutableList()
    val a = there.identity ?: return found.ifEmpty { slots(there, here) }
    val b = here.identity ?: return found.ifEmpty { slots(there, here) }
    val sameVersion = a.version == b.version
    if (sameVersion && a.update != b.update && a.optimizer != b.optimizer) {
        found.add(0, "the optimizer is ${a.optimizer} there, ${b.optimizer} here")
    }
    if (found.isEmpty()) found += slots(there, here)
    if (sameVersion && a.update != b.update && found.isEmpty()) found += "the optimizer computes another update"
    found += frozen(there, here, a.frozen, b.frozen)
    if (sameVersion && a.forward != b.forward && found.isEmpty()) found += "the forward computation differs"
    if (a.int8.isNotEmpty() && b.int8.isNotEmpty() && a.int8 != b.int8) {
        found += "other frozen layers are rounded there, or in other ranges"
    } else if (a.int8 != b.int8) {
        val (theirs, ours) = listOf(a, b).map { if (it.int8.isEmpty()) "float32" else "rounded" }
        found += "the frozen layers are $theirs there, $ours here"
    }
    return found
}

/** An output that has labels in both programs, and others there. */
private class Relabelled(val output: LabelledOutput, theirs: List<String>, ours: List<String>) {
    /** The first class that has another label. */
    val difference: String = run {
        val number = (0..maxOf(theirs.size, ours.size)).first { theirs.getOrNull(it) != ours.getOrNull(it) }
        val (a, b) = listOf(theirs, ours).map { labels -> labels.getOrNull(number)?.let { "'$it'" } ?: "missing" }
        "class $number of ${output.output} is $a there, $b here: build with the labels of the state, in its order"
    }
}

private fun relabelled(there: StateSpec, here: StateSpec): List<Relabelled> = here.labelled.mapNotNull { output ->
    val (theirs, ours) = listOf(there, here).map { it.labels.getOrNull(output.place).orEmpty() }
    if (theirs.isEmpty() || theirs == ours) null else Relabelled(output, theirs, ours)
}

/** The labelled outputs whose classes are others there, or named by the state itself. */
private fun ofOtherClasses(there: StateSpec, here: StateSpec): List<LabelledOutput> =
    if (there.tensors.any { it.name == CLASS_NAMES }) here.labelled else relabelled(there, here).map { it.output }

/** What differs in what trains. */
private fun trained(there: StateSpec, here: StateSpec): List<String> {
    val (a, b) = listOf(there, here).map { spec -> spec.tensors.filter { !it.slot }.associateBy { it.name } }
    val (stillA, stillB) = listOf(there, here).map { it.frozenNames }
    val others = b.values.mapNotNull { tensor -> a[tensor.name]?.let { difference(it, tensor) } }
    val new = (b.keys - a.keys).map { "$it ${if (it in stillA) "is frozen" else "is not"} there and trains here" }
    val gone = (a.keys - b.keys).map { "$it trains there and ${if (it in stillB) "is frozen" else "is not"} here" }
    return few(others) + few(new) + few(gone)
}

/** What differs in what the optimizer keeps. */
private fun slots(there: StateSpec, here: StateSpec): List<String> {
    val (a, b) = listOf(there, here).map { spec -> spec.tensors.filter { it.slot }.associateBy { it.name } }
    val others = b.values.mapNotNull { tensor -> a[tensor.name]?.let { difference(it, tensor) } }
    val new = (b.keys - a.keys).map { "the optimizer keeps $it here and not there" }
    return few(others) + few(new) + few((a.keys - b.keys).map { "the optimizer keeps $it there and not here" })
}

/** What differs in what does not train. */
private fun frozen(there: StateSpec, here: StateSpec, theirs: List<FrozenWeight>, ours: List<FrozenWeight>): List<String> {
    // Their names do not matter.
    if (theirs.map { it.digest } == ours.map { it.digest }) return emptyList()
    val (a, b) = listOf(theirs, ours).map { weights -> weights.associateBy { it.name } }
    val trained = (there.tensors + here.tensors).map { it.name }.toSet()
    val both = b.values.mapNotNull { weight -> a[weight.name]?.let { it to weight } }
    val changed = both.filter { (x, y) -> x.shape == y.shape && x.digest != y.digest }.map { (x, _) -> x.name }
    val reshaped = both.filter { (x, y) -> x.shape != y.shape && x.name !in trained }
    return listOfNotNull(if (changed.isEmpty()) null else "the frozen weights differ: ${listed(changed)}") +
        few(reshaped.map { (x, y) -> "${x.name} is ${size(x.shape)} there, ${size(y.shape)} here" }) +
        few((b.keys - a.keys - trained).map { "$it is here and not there" }) +
        few((a.keys - b.keys - trained).map { "$it is there and not here" })
}

/** What differs between two tensors of one name; null where one is the other, be it stored in another layout. */
private fun difference(there: StateTensor, here: StateTensor): String? {
    val isKnown = there.model != null && here.model != null
    val (a, b) = listOf(there, here).map { if (isKnown) checkNotNull(it.model).shape else it.shape }
    return when {
        a != b -> "${here.name} is ${size(a)} there, ${size(b)} here"
        there.dtype != here.dtype -> "${here.name} is ${there.dtype.label} there, ${here.dtype.label} here"
        isKnown && !coverSame(there, here) -> "another part of ${here.name} trains there"
        !isKnown && here.isSquare -> "which way round ${here.name} lies there cannot be told"
        else -> null
    }
}

/** Whether two tensors hold the same elements of the model's. */
private fun coverSame(there: StateTensor, here: StateTensor): Boolean {
    if (there.shape.product() != here.shape.product()) return false
    val (a, b) = listOf(there, here).map { checkNotNull(it.model) }
    if (a.view == b.view || a.shape.product() == there.shape.product()) return true
    return ViewStep.places(a).sortedArray().contentEquals(ViewStep.places(b).sortedArray())
}

/**
 * Those tensors of a state that a program has, by its names, as it stores them.
 *
 * @param isPart whether the program differs, so that what belongs together may come in part.
 */
private fun carried(tensors: List<StoredTensor>, there: StateSpec, here: StateSpec, isPart: Boolean): List<StoredTensor> {
    val stored = tensors.associateBy { it.name }
    if (there.program == here.program) return ofSameProgram(stored, here)
    val known = there.tensors.associateBy { it.name }
    val found = LinkedHashMap<String, StoredTensor>()
    for (tensor in here.tensors) {
        val theirs = known[tensor.name] ?: continue
        if (difference(theirs, tensor) != null) continue
        found[tensor.tensor] = relaid(stored.getValue(theirs.tensor), theirs, tensor)
    }
    for (output in ofOtherClasses(there, here)) { // the rows of its last layer mean nothing here
        found.keys -= output.parameters.flatMap { keptOf(it, here.tensors) }.map { it.tensor }.toSet()
    }
    if (here.head == null) { // a class that there is not would have a loss of 30,000 here
        found.keys -= layerOfFreeClasses(stored, there).flatMap { keptOf(it, here.tensors) }.map { it.tensor }.toSet()
    }
    for (choice in if (isPart) here.choices else emptyList()) { // a change means nothing beside other channels or weights
        val pair = listOf(choice.indices) + keptOf(choice.change, here.tensors).map { it.tensor }
        val channels = found[choice.indices]
        val weight = here.tensors.find { it.name == choice.weight }
        val isWithout = choice.weight in known && weight?.tensor !in found
        val isPair = pair.all { it in found } && channels != null && choice.isGood(channels.ints())
        if (isWithout || !isPair) found.keys -= pair.toSet()
    }
    for ((integers, scales) in here.scales) { // integers mean nothing with other scales
        if (integers !in found || scales !in found) found.keys -= setOf(integers, scales)
    }
    val head = here.head
    if (head?.names != null) { // names say of all rows of the layer which are classes
        val kept = listOf(head.kernel, head.bias).flatMap { keptOf(it, here.tensors) }
        val own = kept.filter { !it.slot }.map { it.tensor } + head.names
        if (!found.keys.containsAll(own)) found.keys -= (own + kept.map { it.tensor }).toSet()
    }
    return found.values.toList()
}

/**
 * The weights of a last layer with rows of classes that there are not, by the state's names; none without. A file does not
 * say which layer it is: it is that whose bias is the one of free classes.
 */
private fun layerOfFreeClasses(stored: Map<String, StoredTensor>, there: StateSpec): List<String> {
    val names = there.tensors.find { it.name == CLASS_NAMES && it.dtype == Dtype.INT32 && it.shape.size == 2 }
        ?: return emptyList()
    val rows = stored.getValue(names.tensor).ints()
    val count = names.shape[0]
    val free = (0 until count).filter { rows[it * (rows.size / count)] == 0 }
    val weights = there.tensors.filter { !it.slot }
    val bias = weights.find { it.shape == listOf(count) && isOfFree(stored.getValue(it.tensor), free) }
    if (free.isEmpty() || bias == null) return emptyList()
    val layer = bias.name.replace(Regex("[^/.]*$"), "")
    return weights.filter { it.name.startsWith(layer) && count in (it.model?.shape ?: it.shape) }.map { it.name }
}

/** Whether a bias is that of classes that there are not, at all labels of these. */
private fun isOfFree(bias: StoredTensor, free: List<Int>): Boolean =
    bias.dtype == Dtype.FLOAT32 && free.all { bias.bytes.getFloat(it * Float.SIZE_BYTES) <= FREE }

/** The tensors of a state of the program itself: they lie as it stores them, whether or not it says how. */
private fun ofSameProgram(stored: Map<String, StoredTensor>, here: StateSpec): List<StoredTensor> = here.tensors.mapNotNull { own ->
    stored[own.tensor]?.takeIf { it.dtype == own.dtype && it.shape == own.shape }
}

/** The same numbers as another program stores them. */
private fun relaid(tensor: StoredTensor, there: StateTensor, here: StateTensor): StoredTensor {
    val (a, b) = there.model to here.model
    if (a == null || b == null || a.view == b.view) return StoredTensor(here.tensor, here.dtype, here.shape, tensor.bytes)
    val whole = IntArray(b.shape.product().toInt())
    ViewStep.places(a).forEachIndexed { i, place -> whole[place] = i }
    val bytes = ByteBuffer.allocate(here.byteSize).order(ByteOrder.LITTLE_ENDIAN)
    for (place in ViewStep.places(b)) repeat(here.dtype.bytes) { bytes.put(tensor.bytes.get(whole[place] * here.dtype.bytes + it)) }
    return StoredTensor(here.tensor, here.dtype, here.shape, bytes.apply { clear() })
}

/**
 * What a state of an older version is, which says of no tensor how it is laid out: with that where it can be told. Weights
 * of dense layers were stored as [inputs, outputs] or transposed, all others in one way. Of a square one the way counts that is
 * clearly nearer to what was built; a slot goes with its weight.
 */
private fun withLayouts(state: State, here: StateSpec): StateSpec {
    val there = state.spec
    if (there.saysLayouts || there.program == here.program) return there
    val ours = here.tensors.associateBy { it.name }
    val stored = state.tensors.associateBy { it.name }
    val transposed = HashMap<String, Boolean?>() // by the weight
    for (tensor in there.tensors) {
        val like = ours[tensor.name]
        if (like == null || tensor.slot) continue
        transposed[tensor.name] = isTransposed(tensor, like, stored.getValue(tensor.tensor).bytes, here.built(like))
    }
    val laid = there.tensors.map { tensor ->
        val like = ours[tensor.name]?.takeIf { it.model != null } ?: return@map tensor
        val owner = transposed.keys.filter { "/${tensor.name}".endsWith("/$it") }.maxByOrNull { it.length }
        val goesWithIt = owner != null && tensor.shape.product() == ours.getValue(owner).shape.product()
        val way = if (goesWithIt) transposed[owner] else false
        if (way == null || tensor.shape != if (way) like.shape.reversed() else like.shape) return@map tensor
        val model = checkNotNull(like.model)
        tensor.copy(model = if (way) model.copy(view = model.view + ViewStep.TURNED) else model)
    }
    return StateSpec(there.program, laid, there.identity, there.labels)
}

/** Whether a weight is stored the other way round than here; null where it cannot be told. */
private fun isTransposed(there: StateTensor, here: StateTensor, bytes: ByteBuffer, built: ByteBuffer): Boolean? {
    if (!here.isSquare || there.shape != here.shape || here.dtype != Dtype.FLOAT32) {
        return here.shape.size == 2 && there.shape == here.shape.reversed() && there.shape != here.shape
    }
    val (numbers, first) = listOf(bytes, built).map { it.between(0, it.limit()).asFloatBuffer() }
    val side = here.shape[0]
    var kept = 0.0
    var changed = 0.0
    for (row in 0 until side) for (column in 0 until side) {
        val was = first.get(row * side + column)
        kept += (numbers.get(row * side + column) - was).toDouble().let { it * it }
        changed += (numbers.get(column * side + row) - was).toDouble().let { it * it }
    }
    val (least, most) = minOf(kept, changed) to maxOf(kept, changed)
    return if (most == 0.0 || least > most / 2) null else changed < kept
}

/** Whether it has as many rows as columns, so that its shape does not say which are which. */
private val StateTensor.isSquare get() = shape.size == 2 && shape[0] == shape[1] && shape[0] > 1

private val Dtype.label get() = name.lowercase()

/** The first of some differences, and how many more there are. */
private fun few(said: List<String>): List<String> =
    said.take(MOST) + if (said.size > MOST) listOf("and ${said.size - MOST} more of these") else emptyList()

private fun listed(names: List<String>): String =
    names.take(MOST).joinToString(", ") + if (names.size > MOST) " and ${names.size - MOST} more" else ""

private fun size(shape: List<Int>): String = shape.joinToString("x").ifEmpty { "one number" }
