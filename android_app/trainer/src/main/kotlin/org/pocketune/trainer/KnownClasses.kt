package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.ByteOrder

/** The highest bias of a class that there is not: its share of a softmax is 0 exactly, and so is every gradient. */
internal const val FREE = -30000f

/**
 * So many times the lowest of the others it is at least: then no row that is up to seven times as long as the longest class
 * mean names a free class, whatever its direction.
 */
private const val BELOW = 16
private const val WORDS = 16
private const val MOST_BYTES = 60

/**
 * The classes of a program's last layer in one state: set to means of samples without a gradient, added, renamed and
 * forgotten; the twin of the host's `converter/runtime/session/known_classes.py`.
 */
internal class KnownClasses(private val program: Program, private val state: List<StoredTensor>) {
    private val manifest = program.manifest
    private val head = manifest.head ?: throw InputException(
        "the program's last layer is set by steps alone: build with head='class_means', and room for classes, " +
            "classes='10+20'",
    )
    private val tensors = state.associateBy { it.name }.toMutableMap()

    /** Names by label, empty ones free; where none are kept, those of the file or numbers. */
    val names: MutableList<String> = head.names?.let { read(tensors.getValue(it)) }
        ?: (manifest.labels ?: List(head.own) { "$it" }).toMutableList()

    private val known get() = names.indices.filter { names[it].isNotEmpty() }

    /** Labels whose weights are others than before. */
    private val put = mutableSetOf<Int>()

    /** The state with what was changed. Slots that are of no class, as Adam's count, begin anew where all labels were put. */
    fun changed(): List<StoredTensor> {
        for (place in listOf(kernel, bias) + slots.map { it.place }) tensors[place.tensor] = place.stored()
        if (put.size == names.size) {
            val ofClasses = slots.map { it.place.tensor } + listOfNotNull(head.names)
            for (spec in manifest.stateTensors.filter { it.slot && it.tensor !in ofClasses }) {
                tensors[spec.tensor] = StoredTensor(spec.tensor, spec.dtype, spec.shape, program.initial(spec))
            }
        }
        return state.map { tensors.getValue(it.name) }
    }

    /** Sets the last layer to the means of [features] by class, or with a [shrinkage] to their discriminant. */
    fun setMeans(features: List<Values>, labels: List<Int>, shrinkage: Shrinkage? = null) {
        val rows = numbers(features)
        val known = known
        labels.firstOrNull { it !in known }?.let { refuse("y: labels of known classes, one a row: $known, not $it") }
        known.firstOrNull { it !in labels }?.let { refuse("y: no row is of class $it ('${names[it]}'), which has no mean then") }
        val means = known.map { label -> ClassMeans.meanOf(rows.filterIndexed { row, _ -> labels[row] == label }) }
        val places = labels.map(known::indexOf)
        if (shrinkage == null) {
            val sharpness = ClassMeans.sharpnessOf(rows, places, means)
            place(known.indices.toList(), known, ClassMeans(means, sharpness, DoubleArray(known.size)))
        } else {
            val made = Discriminant.of(rows, places, means, shrinkage)
            for (at in known.indices) {
                put(known[at], FloatArray(kernel.width) { made.weights[at][it].toFloat() }, made.bias(at))
            }
        }
        free()
    }

    /** Adds a class of the mean of [features], or without them of weights 0; returns its label. */
    fun add(name: String, features: List<Values>?): Int {
        checkNew(name)
        val label = names.indexOf("")
        if (label < 0) {
            refuse(
                "there is room for ${names.size} classes, and all are there: forget one, or build with more, " +
                    "classes='${head.own}+${names.size - head.own + 10}', whose last layer takes no state of this one",
            )
        }
        val known = known
        if (features == null) {
            put(label, FloatArray(kernel.width), if (known.isEmpty()) 0f else known.map { bias.row(it)[0] }.average().toFloat())
        } else {
            addOf(label, known, numbers(features))
        }
        call(label, name)
        free()
        return label
    }

    private fun addOf(label: Int, known: List<Int>, rows: List<DoubleArray>) {
        val weights = known.map(kernel::row)
        val own = known.map { it < head.own }
        // A mean of 0 says nothing of the sharpness: then all others do.
        val tells = known.indices.any { own[it] && weights[it].any { number -> number != 0f } }
        val biases = FloatArray(known.size) { bias.row(known[it])[0] }
        val before = ClassMeans.of(weights, biases, if (tells) own else known.map { true }) ?: refuse(
            "the last layer does not hold class means, as after steps or with a shrinkage: what another class' weights were " +
                "to be beside them is not known. Set class means with samples of all classes. Or add the class without " +
                "samples, and train or set all again",
        )
        val means = before.means + ClassMeans.meanOf(rows)
        val farther = before.farther + if (tells) ClassMeans.fartherOf(rows) else 0.0
        val labels = known + label
        if (known.size == 1) { // of one class alone nothing told how sharply it is to be told from others
            val sharpness = ClassMeans.sharpnessOf(rows, rows.map { 1 }, means)
            place(listOf(0, 1), labels, ClassMeans(means, sharpness, farther))
        } else {
            place(listOf(known.size), labels, ClassMeans(means, before.sharpness, farther))
        }
    }

    /** Gives a class another name. */
    fun rename(name: String, new: String) {
        checkNamed()
        if (name != new) checkNew(new)
        call(label(name), new)
    }

    /** Frees the label of a class that was added. */
    fun forget(name: String) {
        val label = label(name)
        if (label < head.own) refuse("'$name' is a class of the model's own: it stays, and can be renamed")
        call(label, "")
        free()
    }

    private val kernel = Placed(head.kernel, head.axis)
    private val bias = Placed(head.bias, 0)
    private val slots: List<Slot> by lazy {
        listOf(head.kernel to kernel, head.bias to bias).flatMap { (owner, layer) ->
            keptOf(owner, manifest.stateTensors).filter { it.slot && it.model?.shape == layer.shape }.map {
                Slot(it.name.removeSuffix(owner), layer, Placed(it.tensor, checkNotNull(it.model), layer.axis))
            }
        }
    }

    private fun place(changed: List<Int>, labels: List<Int>, made: ClassMeans) {
        for (at in changed) put(labels[at], made.weights(at), made.bias(at))
    }

    /** Masks the classes that there are not. */
    private fun free() {
        if (head.names == null) return
        val lowest = known.minOfOrNull { bias.row(it)[0] } ?: 0f
        for (label in names.indices - known.toSet()) put(label, FloatArray(kernel.width), minOf(FREE, BELOW * lowest))
    }

    /** Replaces weights and bias of a class; the optimizer's slots of it begin anew. */
    private fun put(label: Int, weights: FloatArray, bias: Float) {
        put += label
        kernel.put(label, weights)
        this.bias.put(label, floatArrayOf(bias))
        for (slot in slots) slot.place.put(label, if (slot.kind in copying) slot.of.row(label) else slot.place.built[label])
    }

    /** Kinds of slots that were built equal to the weights of their parameters. */
    private val copying: Set<String> by lazy { slots.map { it.kind }.filter(::copiesWeights).toSet() }

    /**
     * Whether slots of a kind were. Of weights that were built as zeros the slot tells nothing, and its like of the layer's
     * other parameter does: where both were zeros, a build refuses such optimizers.
     */
    private fun copiesWeights(kind: String): Boolean {
        val told = slots.filter { it.kind == kind && it.of.built.any { row -> row.any { number -> number != 0f } } }
        return told.isNotEmpty() && told.all { it.place.built.indices.all { at -> it.place.built[at].contentEquals(it.of.built[at]) } }
    }

    private fun call(label: Int, name: String) {
        names[label] = name
        val where = checkNotNull(head.names)
        val before = tensors.getValue(where)
        val bytes = ByteBuffer.allocate(names.size * WORDS * Int.SIZE_BYTES).order(ByteOrder.LITTLE_ENDIAN)
        names.forEachIndexed { row, each ->
            val encoded = each.toByteArray()
            bytes.putInt(row * WORDS * Int.SIZE_BYTES, encoded.size)
            encoded.forEachIndexed { i, byte -> bytes.put((row * WORDS + 1) * Int.SIZE_BYTES + i, byte) }
        }
        tensors[where] = StoredTensor(where, before.dtype, before.shape, bytes)
    }

    private fun checkNamed() {
        if (head.names == null) {
            refuse("names are not kept in this program's state: build with room, classes='${head.own}+10'")
        }
    }

    private fun checkNew(name: String) {
        checkNamed()
        if (name.isBlank()) refuse("the name of a class is a text, not '$name'")
        if (name in names) refuse("there is a class '$name' already")
        val size = name.toByteArray().size
        if (size > MOST_BYTES) refuse("the name of a class takes at most $MOST_BYTES bytes in UTF-8, and '$name' takes $size")
    }

    private fun label(name: String): Int {
        val label = if (name.isEmpty()) -1 else names.indexOf(name)
        if (label < 0) refuse("there is no class '$name': there are ${known.joinToString { names[it] }}")
        return label
    }

    /** What the last layer reads of each row. */
    private fun numbers(features: List<Values>): List<DoubleArray> {
        if (features.isEmpty()) refuse("x: there are no rows")
        return features.map { row ->
            when (row) {
                is Values.Floats -> DoubleArray(row.size) { row.array[it].toDouble() }
                is Values.Ints -> DoubleArray(row.size) { (row.array[it] - head.zeroPoint) * head.scale }
                is Values.Bools -> error("features are numbers")
            }
        }
    }

    /** A slot of the optimizer, of a kind of them, and the parameter that it is of. */
    private class Slot(val kind: String, val of: Placed, val place: Placed)

    /** A tensor of the state whose rows of classes lie along an axis of the model's tensor. */
    private inner class Placed(val tensor: String, model: ModelTensor, val axis: Int) {
        constructor(parameter: String, axis: Int) : this(
            manifest.parameters.first { it.name == parameter }.pieces.single().tensor,
            manifest.parameters.first { it.name == parameter }.let { ModelTensor(it.name, it.shape, it.pieces.single().view) },
            axis,
        )

        val shape = model.shape
        private val classes = model.shape[axis]
        val width = model.shape.product().toInt() / classes

        /** Where each number of a class is stored, by label. */
        private val at: List<IntArray> = run {
            val inside = model.shape.drop(axis + 1).product().toInt()
            val found = List(classes) { IntArray(width) }
            ViewStep.places(model).forEachIndexed { i, place ->
                val label = place / inside % classes
                found[label][place / (inside * classes) * inside + place % inside] = i
            }
            found
        }

        /** The rows as they were built, by label. */
        val built: List<FloatArray> by lazy {
            val initial = numbersIn(program.initial(manifest.stateTensors.first { it.tensor == tensor }))
            List(classes) { row(initial, it) }
        }

        /** The numbers as they are. */
        private val now = numbersIn(tensors.getValue(tensor).bytes)

        fun row(label: Int): FloatArray = row(now, label)

        private fun row(numbers: FloatArray, label: Int) = FloatArray(width) { numbers[at[label][it]] }

        fun put(label: Int, row: FloatArray) = row.forEachIndexed { i, number -> now[at[label][i]] = number }

        /** The whole tensor as it is. */
        fun stored(): StoredTensor {
            val before = tensors.getValue(tensor)
            val bytes = ByteBuffer.allocate(before.bytes.limit()).order(ByteOrder.LITTLE_ENDIAN)
            bytes.asFloatBuffer().put(now)
            return StoredTensor(before.name, before.dtype, before.shape, bytes)
        }
    }

    private fun numbersIn(bytes: ByteBuffer): FloatArray {
        val numbers = bytes.between(0, bytes.limit()).asFloatBuffer()
        return FloatArray(numbers.remaining()).also(numbers::get)
    }

    private fun read(tensor: StoredTensor): MutableList<String> = tensor.ints().toList().chunked(WORDS).map { row ->
        if (row[0] !in 0..MOST_BYTES) throw DamagedStateException("the state's names of classes are damaged")
        val bytes = ByteBuffer.allocate(WORDS * Int.SIZE_BYTES).order(ByteOrder.LITTLE_ENDIAN)
        row.forEach(bytes::putInt)
        String(bytes.array(), Int.SIZE_BYTES, row[0])
    }.toMutableList()

    private fun refuse(why: String): Nothing = throw InputException(why)
}
