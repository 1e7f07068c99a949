package org.pocketune.desktop

import java.io.File
import java.nio.file.Files
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.runBlocking
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.Evaluation
import org.pocketune.trainer.InputException
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.NoStateException
import org.pocketune.trainer.Plan
import org.pocketune.trainer.Program
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer

/**
 * Trains a program as an app would. With a file of samples, of which every fifth is held out, it writes `NAME.learned/`, the
 * store of the state, and `NAME.mine.tflite`, the trained model as a plain file, into the current folder; without one
 * it trains on random numbers and keeps nothing. Of a head NAME is that of the file and, behind a dot, the head's.
 */
internal fun tryOut(file: File, arguments: List<String>): Unit = runBlocking {
    val options = Options.of(arguments)
    val program = Program.open(file, options.head)
    val plan = Plan(options.epochs, options.rate?.let(LearningRate::Constant))
    val name = listOfNotNull(file.nameWithoutExtension, options.head).joinToString(".")
    if (options.data == null) {
        println("without DATA.npz it trains on random numbers and keeps nothing: the loss shows that it runs")
        val folder = Files.createTempDirectory("pocketune").toFile()
        try {
            open(program, folder).use { tell(it.fit(madeUp(program.manifest), plan)) }
        } finally {
            folder.deleteRecursively()
        }
        return@runBlocking
    }
    val (heldOut, taught) = samplesOf(options.data, program.manifest).withIndex()
        .partition { (i, _) -> program.manifest.evaluate != null && i % 5 == 4 }
    open(program, File("$name.learned")).use { trainer ->
        try {
            println("goes on from generation ${trainer.restore().generation} in $name.learned")
        } catch (_: NoStateException) {
            println("begins anew: nothing was saved in $name.learned yet")
        }
        tell(trainer.fit(taught.map { it.value }, plan, heldOut.map { it.value }))
        exportPlain(trainer, File("$name.mine.tflite"))
    }
}

private suspend fun open(program: Program, folder: File): Trainer {
    val trainer = Trainer.open(program, TfliteRuntimeFactory(), Store(folder))
    println("${trainer.report.runtime}, ${trainer.report.detail}")
    return trainer
}

private suspend fun exportPlain(trainer: Trainer, file: File) {
    try {
        trainer.exportInference(file)
        println("$file is the trained model, for any TFLite")
    } catch (error: InputException) {
        println("no $file: ${error.message}")
    }
}

private suspend fun tell(training: Flow<TrainEvent>) {
    val losses = mutableListOf<Float>()
    var epoch = 0
    fun tellEpoch() {
        if (losses.isNotEmpty()) println("epoch ${epoch + 1}: loss %.4f".format(losses.average()))
        losses.clear()
    }
    training.collect { event ->
        if (event is TrainEvent.Step && event.epoch != epoch || event is TrainEvent.Finished) tellEpoch()
        when (event) {
            is TrainEvent.Started -> println("${event.samples} samples, ${event.heldOut} held out, ${event.steps} steps")
            is TrainEvent.Step -> {
                epoch = event.epoch
                losses += event.loss
            }
            is TrainEvent.Diverged -> println("nothing was learned: ${event.why}")
            is TrainEvent.Finished -> println(summary(event))
            else -> Unit
        }
    }
}

private fun summary(end: TrainEvent.Finished): String {
    val kept = end.adopted?.let { "kept as generation $it" } ?: "not kept: it got worse on what was held out"
    val (before, after) = (end.before ?: return kept) to (end.after ?: return kept)
    return "held out: ${words(before)} before, ${words(after)} after; $kept"
}

private fun words(evaluation: Evaluation): String {
    val loss = "loss %.4f".format(evaluation.loss)
    return evaluation.accuracy?.let { "%.1f%% right (%s)".format(100 * it, loss) } ?: loss
}

/** What stands behind the program on the command line. */
private class Options(val data: File?, val epochs: Int, val rate: Float?, val head: String?) {
    companion object {
        /** Throws [UsageException]. */
        fun of(arguments: List<String>): Options {
            val (named, files) = arguments.withIndex().partition { (i, it) -> it.startsWith("--") || i > 0 && arguments[i - 1].startsWith("--") }
            val given = named.map { it.value }.chunked(2).associate { it[0] to it.getOrNull(1) }
            fun <T> number(name: String, read: (String) -> T?): T? {
                if (name !in given) return null
                return given[name]?.let(read) ?: throw UsageException("$name takes a number, got ${given[name]}")
            }
            (given.keys - setOf("--epochs", "--rate", "--head")).firstOrNull()?.let { throw UsageException("unknown option $it") }
            if ("--head" in given && given["--head"] == null) throw UsageException("--head takes the name of a head")
            if (files.size > 1) throw UsageException("one file of data, got ${files.map { it.value }}")
            val data = files.singleOrNull()?.let { File(it.value) }
            val epochs = number("--epochs", String::toIntOrNull) ?: 5
            return Options(data, epochs, number("--rate", String::toFloatOrNull), given["--head"])
        }
    }
}
