package org.pocketune.trainer

import java.io.File
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Learning rates: which one a step gets, and what is told where it is 0. */
class RatesTest {
    @TempDir lateinit var folder: File

    private lateinit var runtime: ScriptedRuntime

    @Test
    fun `the learning rate is the one that the optimizer was built with, or what is given`() {
        for ((program, own) in mapOf("mlp-lean" to 0.02f, "mlp-variables" to 0.1f, "unit" to 1f)) {
            val rates = listOf(own, 1f, 0.5f)
            val given = listOf(null, LearningRate.Constant(1f), LearningRate.Constant(0.5f))
            val used = given.map { rate ->
                withTrainer(program) { it.fit(Fixture.samples(8), Plan(1, rate)).toList() }
                runtime.rates.single()
            }
            assertEquals(rates, used)
            folder.listFiles()?.forEach { it.delete() }
        }
    }

    @Test
    fun `a scale multiplies the learning rate, and no rate is below 0`() =
        withTrainer("mlp-lean") { trainer ->
            trainer.fit(Fixture.samples(8), Plan(1, rateScale = 0.5f)).collect {}
            trainer.fit(Fixture.samples(8), Plan(1, LearningRate.Constant(3f), rateScale = 0.5f)).collect {}
            assertEquals(listOf(0.01f, 1.5f), runtime.rates)
            for (bad in listOf(Plan(1, LearningRate.Constant(-1f)), Plan(1, rateScale = -1f), Plan(1, rateScale = Float.NaN))) {
                assertFailsWith<InputException> { trainer.fit(Fixture.samples(8), bad).collect {} }
            }
        }

    @Test
    fun `a rate that runs in the program is scaled, and none is taken beside it`() =
        withTrainer("fading") { trainer ->
            val beside = Plan(1, LearningRate.Constant(1f))
            val refused = assertFailsWith<InputException> { trainer.fit(Fixture.samples(8), beside).collect {} }
            assertContains(checkNotNull(refused.message), Regex("polynomial_schedule.*rateScale"))
            trainer.fit(Fixture.samples(8), Plan(1)).collect {}
            trainer.fit(Fixture.samples(8), Plan(1, rateScale = 0.5f)).collect {}
            assertEquals(listOf(1f, 0.5f), runtime.rates)
        }

    @Test
    fun `that nothing changes any more is told once, before the first such step`() {
        fun told(events: List<TrainEvent>) = events.filterIsInstance<TrainEvent.Standstill>().map { "${it.step}: ${it.why}" }
        // The scripted runtime adds the step's input to every number of the state: each step of 1 counts 1.
        withTrainer("fading") { trainer ->
            val first = told(trainer.fit(Fixture.samples(8), Plan(5)).toList()).single()
            assertTrue(Regex("3: the learning rate is 0: it runs in the program .* has ended.*").matches(first), first)
            assertContains(told(trainer.fit(Fixture.samples(8), Plan(2)).toList()).single(), Regex("^0: .*has ended"))
        }
        folder.listFiles()?.forEach { it.delete() }
        withTrainer("mlp-lean") { trainer ->
            val still = Plan(2, LearningRate.Constant(0f))
            assertEquals(listOf("0: the learning rate is 0"), told(trainer.fit(Fixture.samples(8), still).toList()))
            val warm = Plan(4, { step, _ -> if (step == 0 || step == 3) 0f else 0.1f })
            assertEquals(listOf("3: the learning rate is 0"), told(trainer.fit(Fixture.samples(8), warm).toList()))
            assertEquals(emptyList(), told(trainer.fit(Fixture.samples(8), Plan(2)).toList()))
        }
    }

    private fun withTrainer(program: String, test: suspend (Trainer) -> Unit) = runBlocking {
        val factory = RuntimeFactory { ScriptedRuntime(it.manifest).also { made -> runtime = made } }
        Trainer.open(Fixture.program(program), factory, Store(folder, "personal.state")).use { test(it) }
    }
}
