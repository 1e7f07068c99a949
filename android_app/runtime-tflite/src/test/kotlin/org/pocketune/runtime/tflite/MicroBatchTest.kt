package org.pocketune.runtime.tflite

import java.io.File
import java.nio.ByteBuffer
import java.util.concurrent.TimeUnit
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Tag
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.ValueSource
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.TrainingRuntime

private const val KILLED = 137

/** Twelve steps of four micro-batches each, or of two. */
private val plan = Plan(epochs = 2, checkpointEvery = 2)

/** Does something before a call that takes rows of a step; these are counted from 0. */
private fun interfering(before: (Int) -> Unit) = RuntimeFactory { program ->
    val real = TfliteRuntimeFactory().open(program)
    object : TrainingRuntime by real {
        private var calls = 0

        override fun run(signature: String, inputs: Map<String, ByteBuffer>, outputs: Map<String, ByteBuffer>) {
            if (signature in listOf("accumulate", "gradients")) before(calls++)
            real.run(signature, inputs, outputs)
        }
    }
}

/** In a JVM of its own: trains, or goes on with it, and is killed before such a call. */
internal object KilledTraining {
    @JvmStatic
    fun main(arguments: Array<String>): Unit = runBlocking {
        val (program, store, at) = arguments
        val halting = interfering { if (it == at.toInt()) Runtime.getRuntime().halt(KILLED) }
        Fixture.trainer(Program.open(File(program)), Store(File(store)), halting).use {
            it.fit(samples(program), plan).collect {}
        }
    }

    fun samples(program: String) = Fixture.samples(File(program).name.substringBeforeLast('-')).take(48)
}

/** A step that ends between two of its micro-batches never was. */
class MicroBatchTest {
    @TempDir lateinit var folder: File

    @Tag("every-version")
    @ParameterizedTest
    @ValueSource(
        strings = [
            "mlp-by-2-variables", "mlp-by-2-stateless", "mlp-by-2-split",
            "cnn-by-4-variables", "cnn-by-4-stateless", "cnn-by-4-split",
        ],
    )
    fun `after a failure in mid-step the next training is exactly what it would have been`(name: String) = runBlocking {
        val expected = uninterrupted(name)
        val failing = interfering { if (it == 5) throw RuntimeFailedException("the runtime gave up") }
        Fixture.trainer(Fixture.program(name), Store(File(folder, "failed")), failing).use { trainer ->
            val failure = assertFailsWith<RuntimeFailedException> { trainer.fit(samples(name), plan).collect {} }
            assertTrue("gave up" in failure.message.orEmpty())
            trainer.forget()
            trainer.fit(samples(name), plan).collect {}
            assertEquals(expected, exported(trainer))
        }
    }

    @Test
    fun `killed in mid-step again and again it loses nothing`() = losesNothing("mlp-by-2-variables")

    @Tag("slow")
    @ParameterizedTest
    @ValueSource(strings = ["mlp-by-2-stateless", "mlp-by-2-split"])
    fun `killed in mid-step it loses nothing whoever holds the weights`(name: String) = losesNothing(name)

    private fun losesNothing(name: String) = runBlocking {
        val expected = uninterrupted(name)
        val store = File(folder, "killed")
        // A step is four calls: each of these ends in the middle of one, and the checkpoints lie two steps apart.
        var done = 0
        for (calls in listOf(1, 9, 11, 18)) {
            assertEquals(KILLED, killed(Fixture.file("$name.tflite"), store, at = calls))
            done += calls / 8 * 2
            Fixture.trainer(Fixture.program(name), Store(store)).use { trainer ->
                assertEquals(done, (trainer.fit(samples(name), plan).first() as TrainEvent.Started).resumedAt)
            }
        }
        Fixture.trainer(Fixture.program(name), Store(store)).use { trainer ->
            val events = trainer.fit(samples(name), plan).toList()
            assertEquals(done, (events.first() as TrainEvent.Started).resumedAt)
            assertEquals(expected, exported(trainer))
        }
    }

    private fun samples(name: String) = KilledTraining.samples(Fixture.file("$name.tflite").path)

    private suspend fun uninterrupted(name: String): List<Byte> =
        Fixture.trainer(Fixture.program(name), Store(File(folder, "whole"))).use { trainer ->
            trainer.fit(samples(name), plan).collect {}
            exported(trainer)
        }

    private suspend fun exported(trainer: Trainer): List<Byte> {
        val file = File(folder, "exported").also { it.delete() }
        trainer.export(file)
        return file.readBytes().toList()
    }

    private fun killed(program: File, store: File, at: Int): Int {
        val java = "${System.getProperty("java.home")}/bin/java"
        val options = listOf("java.library.path", "programs").map { "-D$it=${System.getProperty(it)}" }
        val command = listOf(java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC") + options +
            listOf("-cp", System.getProperty("java.class.path"), KilledTraining::class.java.name) +
            listOf(program.path, store.path, "$at")
        val process = ProcessBuilder(command).redirectErrorStream(true).redirectOutput(File(folder, "log")).start()
        assertTrue(process.waitFor(60, TimeUnit.SECONDS))
        return process.exitValue()
    }
}
