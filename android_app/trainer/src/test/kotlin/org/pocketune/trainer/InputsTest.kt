package org.pocketune.trainer

import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertNotNull
import kotlin.test.assertNull
import kotlin.test.assertTrue
import org.junit.jupiter.api.Test

/** Rows that a program takes: their inputs, targets and labels, and the signatures that infer them. */
class InputsTest {
    @Test
    fun `what is missing is said with what the program takes and what came`() {
        fun said(row: Map<String, Values>) =
            assertFailsWith<InputException> { Inputs(Fixture.stateless.manifest, Limits()).check(listOf(row)) }.message.orEmpty()
        val some = said(mapOf("pixels" to Values.Floats(FloatArray(3))))
        assertTrue("rows[0]: the input x is missing: it takes x (36 x " in some && "and pixels (3 x FLOAT32) came" in some, some)
        assertTrue("and nothing came" in said(emptyMap()))
    }

    @Test
    fun `rows are inferred by the signature that just holds them`() {
        fun calls(program: String, rows: Int) =
            Fixture.samples(rows).byInference(Fixture.program(program).manifest).map { (name, batch) -> name to batch.rows.size }
        assertEquals(listOf("infer_1" to 1), calls("cnn-variables", 1))
        assertEquals(listOf("infer_5" to 2), calls("cnn-variables", 2))
        assertEquals(listOf("infer" to 6), calls("cnn-variables", 6))
        assertEquals(listOf("infer" to 8, "infer" to 8, "infer_1" to 1), calls("cnn-variables", 17))
        assertEquals(listOf("infer" to 1), calls("mlp-variables", 1))
    }

    @Test
    fun `several targets are taken by name`() {
        val manifest = Fixture.program("two-stateless").manifest
        assertEquals(mapOf("y/kind" to "sparse_categorical_crossentropy", "y/size" to "mse"), manifest.losses)
        val x = Fixture.sample().inputs
        fun check(vararg targets: Pair<String, Values>) =
            Inputs(manifest, Limits()).check(listOf(Sample(x, mapOf(*targets))))
        val kind = Values.Ints(intArrayOf(3))
        val size = Values.Floats(FloatArray(2))
        check("kind" to kind, "size" to size)
        assertFailsWith<InputException> { check("kind" to kind) }
        assertFailsWith<InputException> { check("kind" to kind, "size" to size, "more" to size) }
        assertFailsWith<InputException> { check("kind" to Values.Ints(intArrayOf(4)), "size" to size) }
        assertFailsWith<InputException> { check("kind" to size, "size" to size) }
        assertFailsWith<InputException> { Inputs(manifest, Limits()).check(listOf(Fixture.sample())) }
    }

    @Test
    fun `classes of the only target are balanced where it has a name, and of several none`() {
        val (named, two) = listOf("named-target", "two-losses").map(Fixture::manifest)
        assertEquals(listOf(3, null), listOf(named.classes, two.classes))
        val plan = Plan(balanceClasses = true)
        Inputs(named, Limits()).check(plan)
        val refused = assertFailsWith<InputException> { Inputs(two, Limits()).check(plan) }
        assertEquals("balanceClasses: this model knows no classes", refused.message)
    }

    @Test
    fun `labels are those of the target, and those that its loss leaves out`() {
        val manifest = Fixture.program("mlp-variables").manifest
        assertEquals(mapOf("y" to TargetLabels(4)), manifest.targetLabels)
        fun takes(labels: TargetLabels?, label: Int): Boolean {
            val known = manifest.copy(targetLabels = listOfNotNull(labels).associateBy { "y" })
            return runCatching { Inputs(known, Limits()).check(listOf(Fixture.sample(label))) }.isSuccess
        }
        val some = listOf(-100, -1, 0, 3, 4, 254, 255)
        assertEquals(listOf(0, 3), some.filter { takes(TargetLabels(4), it) })
        assertEquals(listOf(-100, -1, 0, 3), some.filter { takes(TargetLabels(4, masked = true), it) })
        assertEquals(listOf(0, 3, 255), some.filter { takes(TargetLabels(4, ignored = 255), it) })
        assertEquals(some, some.filter { takes(null, it) })
    }

    @Test
    fun `a target holds the numbers that its loss takes`() {
        val manifest = Fixture.program("two-stateless").manifest
        fun problem(labels: TargetLabels?, vararg size: Float): String? {
            val known = manifest.targetLabels + listOfNotNull(labels?.let { "y/size" to it })
            val targets = mapOf("kind" to Values.Ints(intArrayOf(3)), "size" to Values.Floats(size))
            return try {
                Inputs(manifest.copy(targetLabels = known), Limits()).check(listOf(Sample(Fixture.sample().inputs, targets)))
                null
            } catch (error: InputException) {
                error.message
            }
        }
        assertNull(problem(null, -3f, 7f))
        val probabilities = TargetLabels(least = 0.0, most = 1.0)
        assertNull(problem(probabilities, 0f, 1.0000005f))
        assertEquals("samples[0].y/size: mse takes numbers from 0 to 1, and this holds 2.0", problem(probabilities, 0.5f, 2f))
        assertNotNull(problem(probabilities, -0.1f, 0f))
        val shares = TargetLabels(2, least = 0.0)
        assertNull(problem(shares, 0f, 5f))
        assertTrue("numbers from 0 on, one a class, and this holds -1.0" in problem(shares, -1f, 0f).orEmpty())
        assertTrue("numbers to 2.5, and" in problem(TargetLabels(most = 2.5), 3f, 0f).orEmpty())
        val signs = TargetLabels(only = listOf(-1.0, 1.0), advice = "pass 2 * y - 1")
        assertNull(problem(signs, -1f, 1f))
        assertTrue("mse takes -1 or 1 (pass 2 * y - 1), and this holds 0.0" in problem(signs, 0f, 1f).orEmpty())
    }
}
