package org.pocketune.trainer

import java.io.File
import kotlin.math.abs
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.doubleOrNull
import org.junit.jupiter.api.Test

/** What scikit-learn makes of some rows, as tests/runtime/discriminants.json has it. */
@Serializable
private class Found(
    val shrinkage: JsonPrimitive,
    val x: List<List<Double>>,
    val y: List<Int>,
    val weights: List<List<Double>>,
    val biases: List<Double>,
)

class DiscriminantTest {
    private fun meansOf(rows: List<DoubleArray>, labels: List<Int>) = List(labels.max() + 1) { label ->
        ClassMeans.meanOf(rows.filterIndexed { row, _ -> labels[row] == label })
    }

    @Test
    fun `weights and biases are those of scikit-learn`() {
        val vectors = Json.decodeFromString<List<Found>>(File("../../tests/runtime/discriminants.json").readText())
        assertEquals(8, vectors.size)
        for (found in vectors) {
            val rows = found.x.map { it.toDoubleArray() }
            val shrinkage = found.shrinkage.doubleOrNull?.let(Shrinkage::By) ?: Shrinkage.Auto
            val made = Discriminant.of(rows, found.y, meansOf(rows, found.y), shrinkage)
            for ((label, weights) in found.weights.withIndex()) {
                weights.forEachIndexed { i, number -> assertTrue(abs(made.weights[label][i] - number) < 1e-9) }
                assertEquals(found.biases[label].toFloat(), made.bias(label), 1e-6f * (1 + abs(found.biases[label].toFloat())))
            }
        }
    }

    @Test
    fun `what it cannot be made of is refused`() {
        val rows = List(6) { doubleArrayOf(it * it.toDouble(), 1.0 - it) }
        val labels = listOf(0, 0, 0, 1, 1, 1)
        fun of(rows: List<DoubleArray>, labels: List<Int>, shrinkage: Shrinkage) =
            Discriminant.of(rows, labels, meansOf(rows, labels), shrinkage)
        of(rows, labels, Shrinkage.By(0.1))
        for (part in listOf(0.0, -1.0, 1.1, Double.NaN)) {
            assertFailsWith<InputException> { of(rows, labels, Shrinkage.By(part)) }
        }
        assertFailsWith<InputException> { of(rows, List(6) { 0 }, Shrinkage.Auto) }
        for (shrinkage in listOf(Shrinkage.Auto, Shrinkage.By(0.5))) {
            val same = assertFailsWith<InputException> { of(listOf(rows[0], rows[3]), listOf(0, 1), shrinkage) }
            assertTrue("do not differ enough" in same.message.orEmpty())
        }
    }
}
