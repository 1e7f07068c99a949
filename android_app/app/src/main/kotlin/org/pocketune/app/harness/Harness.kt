package org.pocketune.app.harness

import java.io.Closeable
import java.io.File
import java.io.FileOutputStream
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.withContext
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonObjectBuilder
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.Accelerator
import org.pocketune.trainer.DivergedException
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Limits
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Program
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer

/**
 * Runs jobs through the trainer that the app itself uses; docs/harness.md is the contract.
 *
 * @property results where `ID.jsonl`, `ID.state` and `ID.result.json` go.
 * @property scratch for what a run needs meanwhile.
 * @property device facts that do not change.
 * @property conditions what may change from step to step: heat, charge, memory.
 * @property cpuMillis what this process has used of all cores so far.
 */
class Harness(
    private val results: File,
    private val scratch: File,
    private val device: JsonObject,
    private val conditions: () -> JsonObject,
    private val cpuMillis: () -> Double,
) {
    /** Runs a job to its end; whatever comes of it stands in the result. */
    suspend fun run(job: Job) {
        results.mkdirs()
        File(results, "${job.id}.result.json").delete()
        val lines = Lines(File(results, "${job.id}.jsonl"))
        try {
            val error = lines.use { log ->
                try {
                    job.check()
                    perform(job, log)
                    null
                } catch (e: CancellationException) {
                    throw e
                } catch (e: Exception) {
                    log.write("error") {
                        put("kind", e.javaClass.simpleName)
                        put("message", e.message)
                    }
                    e
                }
            }
            finish(job, lines.count, error)
        } finally {
            scratch.deleteRecursively()
        }
    }

    private suspend fun perform(job: Job, log: Lines) {
        log.write("device") { device.forEach { (name, value) -> put(name, value) } }
        val program = Program.open(File(job.program))
        val batches = readBatches(File(job.batches), program.manifest)
        val rows = List(job.steps * program.manifest.batch) { batches[it % batches.size] }
        val plan = Plan(
            epochs = 1,
            learningRate = if (program.manifest.runningRate == null) LearningRate.Constant(job.learningRate) else null,
            shuffle = false,
            checkpointEvery = 0,
        )
        val factory = TfliteRuntimeFactory(Accelerator.valueOf(job.accelerator.uppercase()), job.threads)
        repeat(job.repeats) { repeat ->
            scratch.deleteRecursively()
            Trainer.open(program, factory, Store(scratch), limits = Limits(samples = rows.size)).use { trainer ->
                log.write("start") {
                    put("repeat", repeat)
                    with(trainer.report) {
                        put("runtime", runtime)
                        put("asked", asked.name.lowercase())
                        put("runs", runs.name.lowercase())
                        put("detail", detail)
                        put("fallback", fallback)
                    }
                    put("conditions", conditions())
                }
                // In the trainer's own thread: what is asked and written after a step must not run beside the next one.
                withContext(Dispatchers.Unconfined) {
                    var began = cpuMillis()
                    trainer.fit(rows, plan).collect { event ->
                        log.event(repeat, event, cpuMillis() - began, last = job.steps - 1)
                        began = cpuMillis()
                    }
                }
                log.write("end") {
                    put("repeat", repeat)
                    put("conditions", conditions())
                }
                if (repeat == 0) trainer.export(File(results, "${job.id}.state"))
            }
        }
    }

    /** [cpuMillis]: since the event before. */
    private fun Lines.event(repeat: Int, event: TrainEvent, cpuMillis: Double, last: Int) = when (event) {
        is TrainEvent.Step -> write("step") {
            put("repeat", repeat)
            put("step", event.step)
            put("loss", event.loss)
            put("millis", event.millis)
            // A thread that ends may take its time with it.
            put("cpu_millis", maxOf(0.0, cpuMillis))
            if (event.step % CONDITIONS_EVERY == 0 || event.step == last) put("conditions", conditions())
        }
        is TrainEvent.Diverged -> throw DivergedException("step ${event.step}: ${event.why}")
        else -> Unit
    }

    /** The result is there whole or not at all: its name appears after its last byte is on the disk. */
    private fun finish(job: Job, lines: Int, error: Exception?) {
        val result = buildJsonObject {
            put("format", "pocketune-result/1")
            put("id", job.id)
            put("ok", error == null)
            put("error", error?.run { "${javaClass.simpleName}: $message" })
            put("lines", lines)
        }
        val partial = File(results, "${job.id}.result.json.partial")
        FileOutputStream(partial).use {
            it.write("$result\n".toByteArray())
            it.fd.sync()
        }
        check(partial.renameTo(File(results, "${job.id}.result.json"))) { "cannot rename $partial" }
    }

    private companion object {
        const val CONDITIONS_EVERY = 10
    }
}

/** A JSON Lines file that is on the disk when it is closed. */
private class Lines(file: File) : Closeable {
    private val stream = FileOutputStream(file)
    var count = 0
        private set

    fun write(type: String, fields: JsonObjectBuilder.() -> Unit) {
        val line = buildJsonObject {
            put("type", type)
            fields()
        }
        stream.write("$line\n".toByteArray())
        count++
    }

    override fun close() = stream.use { it.fd.sync() }
}
