package org.pocketune.trainer

import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
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
    @ValueSource(strings = ["mlp-by-2-variables", "mlp-by-2-stateless", "mlp-by-2-split"])
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
    @ValueSource(strings = ["mlp-by-2-variables", "mlp-by-2-stateless", "mlp-by-2-split", "mlp-split"])
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
        val large = Batch(Fixture.samples(2), listOf(3e38f, 3e38f)).asShares()
        assertEquals(listOf(0.5f, 0.5f), large.weights)
        val small = Batch(Fixture.samples(2), listOf(1e-45f, 3e-45f)).asShares()
        assertEquals(1f, small.weights.sum(), 1e-6f)
    }

    @Test
    fun `gradients of the parts count by their share, in one update`() {
        var call = 0
        val (engine, runtime) = engine("mlp-by-2-split", gradient = { listOf(1f, 4f, 2f)[call] }, onStep = { call = it })
        val batch = Batch(Fixture.samples(5), listOf(1f, 3f, 2f, 2f, 8f))
        assertEquals(0.5f, engine.train(batch, 0.25f))
        assertEquals(listOf(listOf(1f, 3f), listOf(2f, 2f), listOf(8f, 0f)), runtime.weights)
        assertEquals(1 + 0.25f * (1 / 4f + 4 / 4f + 2 / 2f), Fixture.valueOf(engine.read()))
        assertEquals(listOf(0.25f), runtime.rates)
    }

    @Test
    fun `a split step that is one part is one call of each half`() {
        val (engine, runtime) = engine("mlp-split", gradient = { 3f })
        repeat(2) { engine.train(Batch(Fixture.samples(3), listOf(1f, 3f, 2f)), 0.5f) }
        assertEquals(List(2) { listOf(1f, 3f, 2f, 0f, 0f, 0f, 0f, 0f) }, runtime.weights)
        assertEquals(1 + 2 * 0.5f * 3f, Fixture.valueOf(engine.read()))
    }

    @ParameterizedTest
    @ValueSource(strings = ["mlp-split", "mlp-by-2-split"])
    fun `gradients that half precision cannot hold are told of, and never reach the state`(name: String) {
        for (value in listOf(65504f, -131008f, Float.NaN, Float.NEGATIVE_INFINITY)) {
            var gradient = value
            val (engine, runtime) = engine(name, gradient = { gradient })
            val batch = Batch(Fixture.samples(8), List(8) { 1f })
            val failure = assertFailsWith<DivergedException> { engine.train(batch, 0.25f) }
            assertTrue("gradient of a/" in failure.message.orEmpty() && "$value" in failure.message.orEmpty(), "$failure")
            assertEquals(emptyList(), runtime.rates)
            gradient = 65503f
            engine.train(batch, 0f)
            assertEquals(1f, Fixture.valueOf(engine.read()))
        }
    }

    @Test
    fun `on the CPU only what is not finite ends a training`() {
        val program = Fixture.program("mlp-split")
        var gradient = 131008f
        val engine = Engine(program, ScriptedRuntime(program.manifest, gradient = { gradient }, runs = Accelerator.CPU))
        val batch = Batch(Fixture.samples(8), List(8) { 1f })
        engine.train(batch, 0f)
        gradient = Float.POSITIVE_INFINITY
        val failure = assertFailsWith<DivergedException> { engine.train(batch, 0f) }
        assertTrue("slope" in failure.message.orEmpty(), "$failure")
    }

    @ParameterizedTest
    @ValueSource(strings = ["rooted-variables", "rooted-stateless"])
    fun `what a step writes that is not finite is told of, whatever the loss is, and the operation comes first`(name: String) {
        val program = Fixture.program(name)
        var isFinite = true
        val runtime = ScriptedRuntime(program.manifest, finite = { if (isFinite) 0f else Float.NaN })
        val engine = Engine(program, runtime).apply { write(Fixture.tensors(program, 1f)) }
        val batch = Batch(Fixture.samples(8), List(8) { 1f })
        assertEquals(0.5f, engine.train(batch, 0.25f))
        isFinite = false
        val said = assertFailsWith<DivergedException> { engine.train(batch, Float.POSITIVE_INFINITY) }.message.orEmpty()
        assertTrue(said.indexOf("Sqrt (") in 0 until said.indexOf("learning rate"), said)
    }

    @Test
    fun `the accuracy is that of the places that count`() = runBlocking {
        for ((name, expected) in listOf("mixing" to 0.01, "masked" to 0.02)) {
            val evaluation = engine(name).first.evaluate(Fixture.samples(12).inBatches(8)) {}
            assertEquals(expected, evaluation.accuracy!!, 1e-6)
        }
    }

    @Test
    fun `state that the forward pass changes goes from part to part`() {
        val program = Fixture.program("noisy-split")
        val counter = program.manifest.step.giving(Role.STATE).single().name
        val engine = Engine(program, ScriptedRuntime(program.manifest))
        for (steps in 1..3) {
            engine.train(Batch(Fixture.samples(8), List(8) { 1f }), 0.25f)
            assertEquals(4f * steps, engine.read().single { it.name == counter }.bytes.between(0, 4).getFloat(0))
        }
    }

    /** The state is all 1. */
    private fun engine(
        name: String,
        loss: (Float) -> Float = { 1 / (1 + it) },
        gradient: () -> Float = { 1f },
        onStep: (Int) -> Unit = {},
    ): Pair<Engine, ScriptedRuntime> {
        val program = Fixture.program(name)
        val runtime = ScriptedRuntime(program.manifest, loss, gradient = gradient, onStep = onStep)
        val engine = Engine(program, runtime)
        engine.write(Fixture.tensors(1f))
        return engine to runtime
    }
}
