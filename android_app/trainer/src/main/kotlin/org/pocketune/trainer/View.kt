package org.pocketune.trainer

import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.intOrNull

/** How a stored tensor is cut out of the one that the person knows: a chain of these, from the model's to the stored. */
internal sealed interface ViewStep {
    /** The shape behind this step; null when it does not fit [shape]. Touches no tensor. */
    fun on(shape: List<Int>): List<Int>?

    class Transpose(val axes: List<Int>) : ViewStep {
        override fun on(shape: List<Int>) = if (axes.sorted() == shape.indices.toList()) axes.map { shape[it] } else null
    }

    class Reshape(val to: List<Int>) : ViewStep {
        override fun on(shape: List<Int>) = to.takeIf { it.all { d -> d > 0 } && it.product() == shape.product() }
    }

    class Slice(val axis: Int, val start: Int, val stop: Int) : ViewStep {
        override fun on(shape: List<Int>): List<Int>? {
            if (axis !in shape.indices || start < 0 || start >= stop || stop > shape[axis]) return null
            return shape.mapIndexed { i, d -> if (i == axis) stop - start else d }
        }
    }

    companion object {
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
