package org.pocketune.app.core

import kotlinx.serialization.KSerializer
import kotlinx.serialization.Serializable
import kotlinx.serialization.builtins.DoubleArraySerializer
import kotlinx.serialization.encoding.Decoder
import kotlinx.serialization.encoding.Encoder

/** A place the finger passed: [x] to the right and [y] downwards in any unit, [millis] since the drawing began. */
@Serializable(with = PointAsArray::class)
data class Point(val x: Double, val y: Double, val millis: Int) {
    init {
        require(x.isFinite() && y.isFinite()) { "a point at $x, $y" }
    }
}

/** What the finger drew without leaving the glass. */
typealias Stroke = List<Point>

/** A point is `[x, y, millis]` in JSON. */
internal object PointAsArray : KSerializer<Point> {
    private val array = DoubleArraySerializer()
    override val descriptor = array.descriptor

    override fun serialize(encoder: Encoder, value: Point) =
        array.serialize(encoder, doubleArrayOf(value.x, value.y, value.millis.toDouble()))

    override fun deserialize(decoder: Decoder): Point {
        val numbers = array.deserialize(decoder)
        require(numbers.size == 3) { "a point is [x, y, millis]" }
        return Point(numbers[0], numbers[1], numbers[2].toInt())
    }
}
