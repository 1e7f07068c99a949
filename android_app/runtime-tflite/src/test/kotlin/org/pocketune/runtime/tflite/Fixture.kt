package org.pocketune.runtime.tflite

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.math.abs
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.Sample
import org.pocketune.trainer.Store
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.Values

/** The programs that test_programs.py made, and the Android library on this JVM. */
object Fixture {
    private val programs = File(System.getProperty("programs"))

    /** The library links to these by name; once they are loaded it finds them. */
    val natives by lazy {
        for (name in listOf("c", "m", "dl", "log")) {
            System.load("${System.getProperty("java.library.path")}/lib$name.so")
        }
    }

    fun file(name: String) = File(programs, name)

    fun program(name: String, head: String? = null): Program = Program.open(file("$name.tflite"), head)

    fun ints(name: String): List<Int> = buffer(name).asIntBuffer().let { b -> List(b.limit()) { b.get(it) } }

    fun floats(name: String): List<Float> = buffer(name).asFloatBuffer().let { b -> List(b.limit()) { b.get(it) } }

    private fun buffer(name: String) = ByteBuffer.wrap(file(name).readBytes()).order(ByteOrder.LITTLE_ENDIAN)

    /** Pictures of 6 x 6 of integers, with their labels and weights. */
    fun samples(model: String, fed: String): List<Sample> {
        val pixels = file("$model.x").readBytes().map { if (fed == "uint8") it.toUByte().toInt() else it.toInt() }
        val weight = floats("$model.weight")
        return ints("$model.y").mapIndexed { i, label ->
            val picture = Values.Ints(pixels.subList(36 * i, 36 * (i + 1)).toIntArray())
            Sample(mapOf("x" to picture), Values.Ints(intArrayOf(label)), weight[i])
        }
    }

    /** Texts that end where the host's do; of every second one nothing stands behind that. */
    fun texts(data: String): List<Sample> {
        val (x, y, weight) = Triple(ints("$data.x"), ints("$data.y"), floats("$data.weight"))
        val tokens = x.size / weight.size
        return weight.mapIndexed { i, each ->
            val labels = y.subList(tokens * i, tokens * (i + 1))
            val end = if (i % 2 == 0) tokens else labels.indexOfLast { it >= 0 } + 1
            val ids = x.subList(tokens * i, tokens * i + end).toIntArray()
            Sample(mapOf("x" to Values.Ints(ids)), Values.Ints(labels.take(end).toIntArray()), each)
        }
    }

    /** Pictures of 6 x 6 with their labels and weights; `two` has two numbers each as a target besides. */
    fun samples(model: String): List<Sample> {
        val x = floats("$model.x")
        val y = buffer("$model.y").asIntBuffer()
        val size = if (model == "two") floats("$model.size") else null
        val weight = floats("$model.weight")
        return List(y.limit()) { i ->
            val picture = x.subList(36 * i, 36 * (i + 1)).toFloatArray()
            if (size == null) return@List Sample(picture, y.get(i), weight[i])
            val numbers = Values.Floats(size.subList(2 * i, 2 * (i + 1)).toFloatArray())
            val targets = mapOf("kind" to Values.Ints(intArrayOf(y.get(i))), "size" to numbers)
            Sample(mapOf("x" to Values.Floats(picture)), targets, weight[i])
        }
    }

    /** One pass over the samples in their order: what the host did. */
    val asOnTheHost = Plan(epochs = 1, learningRate = LearningRate.Constant(0.02f), shuffle = false, checkpointEvery = 0)

    suspend fun trainer(
        program: Program,
        store: Store,
        factory: RuntimeFactory = TfliteRuntimeFactory(),
    ): Trainer {
        natives
        return Trainer.open(program, factory, store)
    }
}

/** By how much numbers of this runtime and of the host's may differ. */
internal const val TOLERANCE = 1e-5

internal fun assertClose(expected: List<Float>, found: List<Float>, within: Double = TOLERANCE) {
    assertEquals(expected.size, found.size)
    val worst = expected.indices.maxOf { abs(expected[it] - found[it]) }
    assertTrue(worst < within, "off by $worst")
}
