package org.pocketune.trainer

import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import org.junit.jupiter.api.Test
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource

/** Steps of eight rows by micro-batches of two, on a runtime that follows a script. */
class EngineTest {
    @ParameterizedTest
    @ValueSource(strings = ["mlp-by-2-variables", "mlp-by-2-stateless"])
    fun `a step is its micro-batches, each row with its share of the weight, and one update`(name: String) {
        val (engine, runtime) = engine(name)
        val batch = Batch(Fixture.samples(5), listOf(1f, 3f, 2f, 2f, 8f))
        assertEquals(0.5f, engine.train(batch, 0.25f))
        assertEquals(listOf(listOf(1 / 16f, 3 / 16f), listOf(1 / 8f, 1 / 8f), listOf(1 / 2f, 0f)), runtime.weights)
        assertEquals(listOf(0.25f), runtime.rates)
        assertEquals(1.25f, Fixture.valueOf(engine.read()))
        engine.train(batch, 0.25f)
        assertEquals(1.5f, Fixture.valueOf(engine.read()))
    }

    @ParameterizedTest
    @ValueSource(strings = ["mlp-by-2-variables", "mlp-by-2-stateless"])
    fun `what a step left that failed between two micro-batches is no part of the next`(name: String) {
        val (engine, runtime) = engine(name) { if (it == 2) throw RuntimeFailedException("the runtime gave up") }
        val batch = Batch(Fixture.samples(8), List(8) { 1f })
        assertFailsWith<RuntimeFailedException> { engine.train(batch, 0.25f) }
        assertEquals(1f, Fixture.valueOf(engine.read()))
        assertEquals(emptyList(), runtime.rates)
        engine.train(batch, 0.25f)
        assertEquals(1.25f, Fixture.valueOf(engine.read()))
    }

    @ParameterizedTest
    @ValueSource(strings = ["mlp-by-2-variables", "mlp-by-2-stateless"])
    fun `gradients of a loss that is not finite never reach the state`(name: String) {
        var isLost = true
        val (engine, runtime) = engine(name, loss = { if (isLost) Float.NaN else 1f })
        val batch = Batch(Fixture.samples(8), List(8) { 1f })
        assertEquals(Float.NaN, engine.train(batch, 0.25f))
        assertEquals(emptyList(), runtime.rates)
        isLost = false
        assertEquals(1f, engine.train(batch, 0.25f))
        assertEquals(1.25f, Fixture.valueOf(engine.read()))
    }

    @Test
    fun `shares of very large and very small weights`() {
        val (large) = Batch(Fixture.samples(2), listOf(3e38f, 3e38f)).shares(2)
        assertEquals(listOf(0.5f, 0.5f), large.weights)
        val (small) = Batch(Fixture.samples(2), listOf(1e-45f, 3e-45f)).shares(2)
        assertEquals(1f, small.weights.sum(), 1e-6f)
    }

    /** The state is all 1. */
    private fun engine(
        name: String,
        loss: (Float) -> Float = { 1 / (1 + it) },
        onStep: (Int) -> Unit = {},
    ): Pair<Engine, ScriptedRuntime> {
        val program = Fixture.program(name)
        val runtime = ScriptedRuntime(program.manifest, loss, onStep = onStep)
        val engine = Engine(program, runtime)
        engine.write(Fixture.tensors(1f))
        return engine to runtime
    }
}
