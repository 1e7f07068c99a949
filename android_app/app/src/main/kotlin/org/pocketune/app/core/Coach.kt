package org.pocketune.app.core

import java.io.IOException
import kotlinx.coroutines.flow.Flow
import org.pocketune.trainer.DivergedException
import org.pocketune.trainer.InputException
import org.pocketune.trainer.NewerProgramException
import org.pocketune.trainer.StateVersionException
import org.pocketune.trainer.ForeignStateException
import org.pocketune.trainer.PocketuneException
import org.pocketune.trainer.ProgramException
import org.pocketune.trainer.Sample
import org.pocketune.trainer.StateException
import org.pocketune.trainer.StorageException
import org.pocketune.trainer.TrainEvent

/** What the presenter asks of training. Everything throws the trainer's PocketuneExceptions. */
interface Coach {
    /** Opens the program with the user's state. */
    suspend fun open(): Opening

    /** A training of the user's model; see `Trainer.fit`. */
    fun train(samples: List<Sample>, heldOut: List<Sample>): Flow<TrainEvent>

    fun pause()

    fun resume()

    /** Drops what an unfinished training left for its continuation. */
    suspend fun forget()

    /** Logits of the classes for each image. [original]: of the model as it was built. */
    suspend fun logits(images: List<FloatArray>, original: Boolean = false): List<FloatArray>

    /** Changes places with the model before. */
    suspend fun undo(): InUse

    /** Back to the model as it was built; [undo] brings the user's back. */
    suspend fun reset(): InUse
}

/**
 * The model in use.
 *
 * @property personal whether it is not the one that was built.
 * @property generation of the saved state; 0 when there is none, null when it could not be read.
 */
data class InUse(val personal: Boolean, val generation: Long?)

/**
 * An open program.
 *
 * @property problem why the user's state could not be used, or not the newest one; null when all is well.
 */
class Opening(val model: Model, val inUse: InUse, val problem: Problem?)

/** What an exception means for the user; null for one that is not ours. */
fun problemOf(error: Throwable): Problem? = when (error) {
    is NewerProgramException, is StateVersionException -> Problem.PROGRAM_NEWER
    is ProgramException -> Problem.PROGRAM_DAMAGED
    is ForeignStateException -> Problem.STATE_FOREIGN
    is StateException -> Problem.STATE_DAMAGED
    is StorageException, is IOException -> Problem.DISK_FULL
    is DivergedException -> Problem.DIVERGED
    is InputException -> Problem.INPUT
    is PocketuneException -> Problem.RUNTIME
    else -> null
}
