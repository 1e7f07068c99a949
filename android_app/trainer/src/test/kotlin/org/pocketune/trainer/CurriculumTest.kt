package org.pocketune.trainer

import java.io.File
import kotlin.test.assertEquals
import kotlin.test.assertNotEquals
import kotlin.test.assertTrue
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.jupiter.api.Test

/** The order of an epoch, as tests/runtime/orders.json has it. */
@Serializable
private data class Vector(val seed: Long, val epoch: Int, val order: List<Int>)

/** Orders, replay, balance and rates. */
class CurriculumTest {
    private val samples = Fixture.samples(21)

    @Test
    fun `every epoch sees every sample once, in an order of its own that the seed decides`() {
        val curriculum = Curriculum(samples, Plan(seed = 3), 8)
        val orders = List(3) { epoch -> curriculum.batches(epoch).flatMap { it.rows } }
        orders.forEach { assertEquals(samples.toSet(), it.toSet()) }
        assertEquals(3, orders.toSet().size)
        assertEquals(orders[1], Curriculum(samples, Plan(seed = 3), 8).batches(1).flatMap { it.rows })
        assertNotEquals(orders[1], Curriculum(samples, Plan(seed = 4), 8).batches(1).flatMap { it.rows })
        assertEquals(samples, Curriculum(samples, Plan(shuffle = false), 8).batches(2).flatMap { it.rows })
        assertEquals(listOf(8, 8, 5), curriculum.batches(0).map { it.rows.size })
        assertEquals(3, curriculum.stepsPerEpoch)
    }

    @Test
    fun `the order is the same on every device and for all time`() {
        val order = Curriculum(samples, Plan(seed = 1), 32).batches(0).single().rows.map(samples::indexOf)
        // What java.util.Collections.shuffle does with java.util.Random, both of which are specified to the number.
        val random = java.util.Random(1L * 1_000_003)
        val expected = samples.indices.toMutableList()
        for (i in 20 downTo 1) java.util.Collections.swap(expected, i, random.nextInt(i + 1))
        assertEquals(expected, order)
    }

    @Test
    fun `orders are those of the host and the page`() {
        val vectors = Json.decodeFromString<List<Vector>>(File("../../tests/runtime/orders.json").readText())
        assertTrue(vectors.size > 9)
        for ((seed, epoch, order) in vectors) {
            val rows = Fixture.samples(order.size)
            val found = Curriculum(rows, Plan(seed = seed), order.size).batches(epoch).single().rows
            val places = rows.withIndex().associate { (i, row) -> System.identityHashCode(row) to i }
            assertEquals(order, found.map { places.getValue(System.identityHashCode(it)) })
        }
    }

    @Test
    fun `rows of weight 0 are left out`() {
        val rows = Curriculum(samples + Fixture.sample(0, 0f), Plan(), 8).batches(0).flatMap { it.rows }
        assertEquals(samples.toSet(), rows.toSet())
    }

    @Test
    fun `replayed samples make up their share and change from epoch to epoch`() {
        val old = Fixture.samples(100)
        val curriculum = Curriculum(samples, Plan(replay = Replay(old, 0.25)), 8)
        val epochs = List(2) { epoch -> curriculum.batches(epoch).flatMap { it.rows } }
        for (rows in epochs) assertEquals(28, rows.size)
        assertEquals(7, epochs[0].filter { it in old }.toSet().size)
        assertNotEquals(epochs[0].filter { it in old }.toSet(), epochs[1].filter { it in old }.toSet())
        // Fewer than are drawn: they come again.
        val few = Curriculum(samples, Plan(replay = Replay(old.take(5), 0.75)), 8)
        assertEquals(84, few.batches(0).flatMap { it.rows }.size)
    }

    @Test
    fun `balance gives each class the same weight and keeps the sum`() {
        val uneven = List(9) { Fixture.sample(0) } + List(3) { Fixture.sample(1) }
        val batches = Curriculum(uneven, Plan(balanceClasses = true), 8).batches(0)
        val weights = batches.flatMap { it.rows.zip(it.weights) }.groupBy({ it.first.label }, { it.second })
        assertEquals(6f, weights.getValue(0).sum(), 1e-5f)
        assertEquals(6f, weights.getValue(1).sum(), 1e-5f)
        assertEquals(2, Sample(emptyMap(), Values.Floats(floatArrayOf(0f, 0f, 1f))).classOf())
    }

    @Test
    fun `rates`() {
        val cosine = LearningRate.Cosine(1f, 0.2f)
        assertEquals(1f, cosine.at(0, 100))
        assertEquals(0.6f, cosine.at(50, 100), 1e-6f)
        assertTrue(cosine.at(99, 100) in 0.2f..0.201f)
        val warm = LearningRate.WarmUp(4, cosine)
        assertEquals(listOf(0.2f, 0.4f, 0.6f, 0.8f, 1f), List(5) { warm.at(it, 104) })
        assertEquals(0.6f, warm.at(54, 104), 1e-6f)
        assertTrue(List(3) { LearningRate.WarmUp(9, cosine).at(it, 3) }.all { it.isFinite() })
    }
}
