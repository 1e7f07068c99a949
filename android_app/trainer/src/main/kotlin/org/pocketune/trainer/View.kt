package org.pocketune.trainer

import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.intOrNull

/** How a stored tensor is cut out of the one that the user knows: a chain of these, from the model's to the stored. */
internal sealed interface ViewStep {
    /** The shape behind this step; null when it does not fit [shape]. Touches no tensor. */
    fun on(shape: List<Int>): List<Int>?

    /** The elements of a tensor of [shape] behind this step, which fits. */
    fun of(elements: IntArray, shape: List<Int>): IntArray

    class Transpose(val axes: List<Int>) : ViewStep {
        override fun on(shape: List<Int>) = if (axes.sorted() == shape.indices.toList()) axes.map { shape[it] } else null

        override fun of(elements: IntArray, shape: List<Int>) =
            taken(elements, axes.map { shape[it] }, axes.map { shape.strides()[it] }, first = 0)
    }

    class Reshape(val to: List<Int>) : ViewStep {
        override fun on(shape: List<Int>) = to.takeIf { it.all { d -> d > 0 } && it.product() == shape.product() }

        override fun of(elements: IntArray, shape: List<Int>) = elements
    }

    class Slice(val axis: Int, val start: Int, val stop: Int) : ViewStep {
        override fun on(shape: List<Int>): List<Int>? {
            if (axis !in shape.indices || start < 0 || start >= stop || stop > shape[axis]) return null
            return shape.mapIndexed { i, d -> if (i == axis) stop - start else d }
        }

        override fun of(elements: IntArray, shape: List<Int>): IntArray {
            val strides = shape.strides()
            return taken(elements, checkNotNull(on(shape)), strides, start * strides[axis])
        }
    }

    companion object {
        /** Rows and columns of a matrix change places. */
        val TURNED: JsonElement = Json.parseToJsonElement("""["transpose",[1,0]]""")

        /** Where each element of what is stored lies in the model's tensor; the view fits it. */
        fun places(model: ModelTensor): IntArray {
            var shape = model.shape
            var places = IntArray(shape.product().toInt()) { it }
            for (step in model.view.map { checkNotNull(parse(it)) }) {
                places = step.of(places, shape)
                shape = checkNotNull(step.on(shape))
            }
            return places
        }

        /** The shape behind all steps of a view; null when one does not fit. Touches no tensor. */
        fun shape(view: List<JsonElement>, shape: List<Int>): List<Int>? =
            view.fold(shape as List<Int>?) { now, step -> now?.let { parse(step)?.on(it) } }

        /** A step of a manifest; null when it is none. */
        fun parse(json: JsonElement): ViewStep? {
            val parts = json as? JsonArray ?: return null
            val kind = (parts.firstOrNull() as? JsonPrimitive)?.takeIf { it.isString }?.contentOrNull
            return when {
                kind == "transpose" && parts.size == 2 -> ints(parts[1])?.let(::Transpose)
                kind == "reshape" && parts.size == 2 -> ints(parts[1])?.let(::Reshape)
                kind == "slice" && parts.size == 4 ->
                    ints(JsonArray(parts.drop(1)))?.let { (axis, start, stop) -> Slice(axis, start, stop) }
                else -> null
            }
        }

        private fun ints(json: JsonElement): List<Int>? {
            val items = json as? JsonArray ?: return null
            val numbers = items.mapNotNull { (it as? JsonPrimitive)?.takeUnless { p -> p.isString }?.intOrNull }
            return numbers.takeIf { it.size == items.size }
        }
    }
}

/** Whether the view of a tensor of the model gives so many elements as a tensor of the shape [stored] has. */
internal fun ModelTensor.gives(stored: List<Int>): Boolean {
    return ViewStep.shape(view, shape)?.product() == stored.product()
}

/** How far apart the elements along each axis are. */
private fun List<Int>.strides(): List<Int> = indices.map { drop(it + 1).product().toInt() }

/** Elements in the shape [to], each axis in steps of its own through [elements], from the [first] on. */
private fun taken(elements: IntArray, to: List<Int>, steps: List<Int>, first: Int) =
    IntArray(to.product().toInt()) { at ->
        var rest = at
        var place = first
        for (axis in to.indices.reversed()) {
            place += rest % to[axis] * steps[axis]
            rest /= to[axis]
        }
        elements[place]
    }
