package org.pocketune.trainer

import kotlin.test.assertEquals
import org.junit.jupiter.api.Test

/** Programs whose rows may have several lengths. */
class LengthsTest {
    @Test
    fun `texts take the signature of the fewest tokens that hold their labels`() {
        val manifest = Fixture.program("lengths").manifest
        fun text(tokens: Int, asked: Int) = Sample(
            mapOf("x" to Values.Ints(IntArray(tokens) { it + 1 })),
            Values.Ints(IntArray(tokens) { if (it < asked) it else -1 }),
        )
        fun taken(signature: String, vararg rows: Sample) = manifest.ofFewestTokens(signature, Batch(rows.toList(), rows.map { 1f }))
        for ((rows, name) in listOf(
            listOf(text(12, 4)) to "train_length_4", listOf(text(3, 0)) to "train_length_4",
            listOf(text(12, 2), text(5, 5)) to "train_length_8", listOf(text(4, 4), text(12, 9)) to "train",
        )) assertEquals(name, taken("train", *rows.toTypedArray()).first)
        val (name, batch) = taken("evaluate", text(2, 2), text(12, 3))
        assertEquals("evaluate_length_4", name)
        val (x, y) = listOf(batch.rows[0].inputs.getValue("x"), batch.rows[0].target).map { (it as Values.Ints).array.toList() }
        assertEquals(listOf(1, 2, 0, 0) to listOf(0, 1, -1, -1), x to y)
        assertEquals("infer_length_8", taken("infer", Sample(text(6, 0).inputs, emptyMap())).first)
    }
}
