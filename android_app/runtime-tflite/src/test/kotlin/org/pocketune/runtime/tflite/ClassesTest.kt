package org.pocketune.runtime.tflite

import java.io.File
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.trainer.InputException
import org.pocketune.trainer.Plan
import org.pocketune.trainer.ReplayException
import org.pocketune.trainer.ReplayMemory
import org.pocketune.trainer.Sample
import org.pocketune.trainer.Shrinkage
import org.pocketune.trainer.Store
import org.pocketune.trainer.Values

/** Classes that come at run time (android_app/class_programs.py), against what the host makes of the same programs. */
class ClassesTest {
    @TempDir lateinit var folder: File

    @Test
    fun `classes of means, one of them added here, are those of the host`(): Unit = runBlocking {
        val samples = Fixture.samples("mlp")
        val rows = samples.take(5).map { it.inputs }
        val others = rows.map { row ->
            val x = (row.getValue("x") as Values.Floats).array
            mapOf("x" to Values.Floats(FloatArray(x.size) { -x[it] }))
        }
        Fixture.trainer(Fixture.program("classes"), Store(folder)).use { trainer ->
            val own = trainer.classes().filterNotNull()
            val early = assertFailsWith<InputException> { trainer.addClass("zwölf", others) }
            assertTrue("class means" in early.message.orEmpty())
            trainer.setClassMeans(samples)
            assertEquals(own.size, trainer.addClass("zwölf", others))
            val logits = trainer.infer(rows + others).flatMap { (it.values.single() as Values.Floats).array.toList() }
            assertClose(Fixture.floats("classes.output"), logits)
            trainer.renameClass("zwölf", "dreizehn")
            assertEquals(own + listOf("dreizehn", null), trainer.classes())
            val all = samples + others.map { Sample(it, Values.Ints(intArrayOf(own.size))) }
            trainer.setClassMeans(all)
            assertEquals(own + listOf("dreizehn", null), trainer.classes())
            trainer.setClassMeans(all, Shrinkage.Auto)
            assertEquals(own + listOf("dreizehn", null), trainer.classes())
            trainer.addClass("leer")
            val full = assertFailsWith<InputException> { trainer.addClass("mehr") }
            assertTrue("room for ${own.size + 2} classes" in full.message.orEmpty())
            trainer.forgetClass("leer")
            val free = Sample(samples[0].inputs, Values.Ints(intArrayOf(own.size + 1)))
            assertFailsWith<InputException> { trainer.evaluate(listOf(free)) }
            assertFailsWith<InputException> { trainer.forgetClass(own[0]) }
            trainer.restore(Fixture.file("classes.state"))
            assertEquals(own + listOf("zwölf", null), trainer.classes())
        }
    }

    @Test
    fun `class means of one-hot rows are those of the host`(): Unit = runBlocking {
        Fixture.trainer(Fixture.program("one_hot"), Store(folder)).use { trainer ->
            val samples = Fixture.samples("mlp").map { sample ->
                val share = FloatArray(trainer.classes().size).also { it[checkNotNull(sample.label)] = 1f }
                Sample(sample.inputs, Values.Floats(share))
            }
            trainer.setClassMeans(samples)
            val logits = trainer.infer(samples.take(5).map { it.inputs }).flatMap { (it.values.single() as Values.Floats).array.toList() }
            assertClose(Fixture.floats("one_hot.output"), logits)
            val both = Sample(samples[0].inputs, Values.Floats(FloatArray(trainer.classes().size) { if (it < 2) 0.5f else 0f }))
            assertFailsWith<InputException> { trainer.setClassMeans(samples + both) }
        }
    }

    @Test
    fun `rows of a memory never train for another class than the one that they came under`(): Unit = runBlocking {
        val program = Fixture.program("classes")
        val memory = ReplayMemory.open(File(folder, "memory"), program, heldOut = 0.0)
        Fixture.trainer(program, Store(folder)).use { trainer ->
            val label = trainer.addClass("zwölf")
            val rows = Fixture.samples("mlp").take(5).map { Sample(it.inputs, Values.Ints(intArrayOf(label))) }
            suspend fun refused(work: suspend () -> Unit) = assertFailsWith<ReplayException> { work() }.message.orEmpty()
            trainer.remember(memory, rows)
            trainer.renameClass("zwölf", "dreizehn")
            assertTrue("is of 'dreizehn' now" in refused { trainer.remember(memory, rows) })
            memory.rename(label, "dreizehn")
            trainer.remember(memory, rows)
            trainer.forgetClass("dreizehn")
            assertTrue("is of no class now" in refused { trainer.fit(Fixture.samples("mlp"), memory = memory).collect {} })
            assertEquals(label, trainer.addClass("vierzehn"))
            assertTrue("is of 'vierzehn' now" in refused { trainer.fit(rows, memory = memory).collect {} })
            memory.forget(label)
            trainer.remember(memory, rows)
            assertEquals(mapOf(label to 5), memory.counts())
        }
    }

    @Test
    fun `slots that copy weights, and class means far from zero, are those of the host`(): Unit = runBlocking {
        val samples = Fixture.samples("mlp").map { Sample(it.inputs, it.targets) }
        fun moved(by: (Float) -> Float) = samples.map { sample ->
            val x = (sample.inputs.getValue("x") as Values.Floats).array
            Sample(mapOf("x" to Values.Floats(FloatArray(x.size) { by(x[it]) })), sample.targets)
        }
        Fixture.trainer(Fixture.program("moved"), Store(folder)).use { trainer ->
            suspend fun logits(rows: List<Sample>) = trainer.infer(rows.take(5).map { it.inputs })
                .map { (it.values.single() as Values.Floats).array }
            suspend fun farLabels() = logits(moved { -it }).map { row -> row.indices.maxBy { row[it] } }
            suspend fun train() = trainer.fit(samples, Plan(epochs = 1, shuffle = false, checkpointEvery = 0)).collect {}
            trainer.setClassMeans(samples)
            train() // of which nothing is left by class means: the host begins with these
            trainer.setClassMeans(samples)
            trainer.addClass("zwölf", moved { -it }.take(5).map { it.inputs })
            train()
            assertClose(Fixture.floats("moved.output"), logits(samples).flatMap { it.toList() })
            trainer.reset()
            trainer.setClassMeans(moved { it + 300 })
            assertEquals(Fixture.ints("moved.labels"), farLabels())
            trainer.addClass("far", moved { it + 302 }.take(5).map { it.inputs })
            trainer.forgetClass("far")
            assertEquals(Fixture.ints("moved.labels"), farLabels())
            val large = assertFailsWith<InputException> { trainer.setClassMeans(moved { it + 30_000 }) }
            assertTrue("Normalise the input of the last layer" in large.message.orEmpty())
        }
    }
}
