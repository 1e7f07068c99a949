package org.pocketune.sample

import java.io.File
import kotlinx.coroutines.flow.Flow
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.*

/** A model that this phone trains and keeps. */
class Learner private constructor(private val trainer: Trainer) {
    /** Trains; the new state is saved when it does [heldOut] no worse than the one before. */
    fun teach(taught: List<Sample>, heldOut: List<Sample>): Flow<TrainEvent> =
        trainer.fit(taught, Plan(epochs = 10, learningRate = LearningRate.Cosine(0.1f)), heldOut)

    /** The likeliest label of a row. */
    suspend fun guess(x: FloatArray): Int {
        val outputs = trainer.infer(listOf(mapOf("x" to Values.Floats(x)))).single()
        val scores = (outputs.getValue("output") as Values.Floats).array
        return scores.indices.maxBy { scores[it] }
    }

    /** Writes the trained model as a plain `.tflite`, for any runtime. */
    suspend fun export(file: File) = trainer.exportInference(file)

    companion object {
        /** Opens the model with what it learned before, which is in [folder]. */
        suspend fun open(program: Program, folder: File): Learner {
            val trainer = Trainer.open(program, TfliteRuntimeFactory(threads = 2), Store(folder))
            try {
                trainer.restore()
            } catch (_: NoStateException) {
                // The first start.
            } catch (_: DamagedStateException) {
                trainer.setAside() // both generations are damaged: there is nothing left to go on with
            } catch (_: ForeignStateException) {
                trainer.setAside() // of a model that this app no longer has; kept as .unusable
            }
            return Learner(trainer)
        }
    }
}
