package org.pocketune.app.core

import java.io.File
import java.io.IOException
import java.io.InputStream
import java.nio.ByteBuffer
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import org.pocketune.trainer.DamagedProgramException
import org.pocketune.trainer.Guards
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.NoStateException
import org.pocketune.trainer.Plan
import org.pocketune.trainer.PocketuneException
import org.pocketune.trainer.Program
import org.pocketune.trainer.Replay
import org.pocketune.trainer.Role
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.Sample
import org.pocketune.trainer.StateException
import org.pocketune.trainer.StateVersionException
import org.pocketune.trainer.StorageException
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.Values

/**
 * An NPU that programs can be compiled for ahead of time.
 *
 * @property soc the model of the SoC that it is part of.
 * @property runtime what runs a program there that was compiled so, and the program itself where that fails.
 */
class Npu(val soc: String, val runtime: (compiled: ByteBuffer) -> RuntimeFactory)

/**
 * Trains the bundled program. One trainer holds the user's model, a second one the model as it was built.
 *
 * @property asset opens a file that came with the app.
 * @property directory where the user's state lives.
 * @property npu of this phone; null where there is none, or no library for it in the app.
 */
class TrainerCoach(
    private val asset: (String) -> InputStream,
    private val directory: File,
    private val runtime: RuntimeFactory,
    private val guards: Guards,
    private val npu: Npu? = null,
) : Coach, AutoCloseable {
    private class Trainers(val personal: Trainer, val original: Trainer, val description: Description, val replay: Replay)

    private val opening = Mutex()
    private var trainers: Trainers? = null

    override suspend fun open(): Opening {
        val opened = trainers()
        var generation: Long? = 0
        val problem = try {
            val restored = opened.personal.restore()
            generation = restored.generation
            restored.lost?.let { Problem.STATE_OLDER }
        } catch (_: NoStateException) {
            null
        } catch (e: StateVersionException) {
            problemOf(e) // a newer app saved it, and goes on with it once it is back
        } catch (e: StateException) {
            // It would be refused to be overwritten, and the user could never personalize again.
            try {
                opened.personal.setAside()
            } catch (_: StorageException) {
                // A disk that refuses this will refuse the next state too, and that is told then.
            }
            problemOf(e)
        } catch (e: PocketuneException) {
            generation = null
            problemOf(e)
        }
        return Opening(opened.model(), InUse(personal = !isAsBuilt(), generation), problem)
    }

    override fun train(samples: List<Sample>, heldOut: List<Sample>): Flow<TrainEvent> = flow {
        val opened = trainers()
        val recipe = opened.description.recipe
        val plan = Plan(
            epochs = recipe.epochs,
            learningRate = LearningRate.Constant(recipe.learningRate),
            replay = opened.replay,
            checkpointEvery = CHECKPOINT_EVERY,
        )
        emitAll(opened.personal.fit(samples, plan, heldOut))
    }

    override fun pause() = trainers?.personal?.pause() ?: Unit

    override fun resume() = trainers?.personal?.resume() ?: Unit

    override suspend fun forget() = trainers().personal.forget()

    override suspend fun logits(images: List<FloatArray>, original: Boolean): List<FloatArray> {
        val opened = trainers()
        val trainer = if (original) opened.original else opened.personal
        val signature = trainer.program.manifest.infer
        val input = signature.taking(Role.INPUT).single().name
        val output = signature.giving(Role.OUTPUT).single().name
        return trainer.infer(images.map { mapOf(input to Values.Floats(it)) })
            .map { (it.getValue(output) as Values.Floats).array }
    }

    override suspend fun undo(): InUse {
        val restored = trainers().personal.rollback()
        return InUse(!isAsBuilt(), restored.generation)
    }

    override suspend fun reset() = InUse(personal = false, trainers().personal.reset() ?: 0)

    override fun close() {
        trainers?.run {
            personal.close()
            original.close()
        }
    }

    /** Whether the user's model answers as the original does. */
    private suspend fun isAsBuilt(): Boolean {
        val probe = trainers().replay.samples.map { (it.inputs.values.single() as Values.Floats).array }.take(PROBES)
        return logits(probe, original = true).zip(logits(probe)).all { (a, b) -> a.contentEquals(b) }
    }

    private suspend fun trainers(): Trainers = opening.withLock {
        trainers ?: load().also { trainers = it }
    }

    private suspend fun load(): Trainers {
        val description = Description.parse(bytes(Description.FILE).decodeToString())
        val program = Program.open(description.program.run { bytes(file).checked(file, sha256) })
        val pixels = description.preprocessing.run { size * size }
        val samples = description.samples.run { builtInSamples(bytes(file).checked(file, sha256), pixels, levels) }
        description.check(program.manifest, samples)
        val runs = onNpu(description) ?: runtime
        val personal = Trainer.open(program, runs, Store(directory), guards)
        val original = try {
            Trainer.open(program, runs, Store(File(directory, "original")))
        } catch (e: Throwable) {
            // Also when the process ends meanwhile.
            personal.close()
            throw e
        }
        return Trainers(personal, original, description, Replay(samples, description.recipe.replay))
    }

    /** The program that was compiled for this very phone, where there is one. */
    private fun onNpu(description: Description): RuntimeFactory? {
        val phone = npu ?: return null
        val compiled = description.compiled[phone.soc] ?: return null
        return phone.runtime(ByteBuffer.wrap(compiled.run { bytes(file).checked(file, sha256) }))
    }

    private fun bytes(file: String): ByteArray = try {
        asset(file).use { it.readBytes() }
    } catch (e: IOException) {
        throw DamagedProgramException("$file cannot be read", e)
    }

    private fun Trainers.model(): Model {
        val manifest = personal.program.manifest
        return Model(
            description = description,
            name = manifest.name,
            answers = checkNotNull(manifest.classes),
            trained = manifest.costs["trained_parameters"]?.toLong(),
            fileBytes = asset(description.program.file).use { it.available().toLong() },
            stateBytes = manifest.stateBytes,
            arenaBytes = manifest.costs["arena_bytes"]?.toLong(),
            optimizer = manifest.optimizer,
            layers = manifest.update.table.filter { it.fraction > 0 }.map { it.parameter to it.fraction },
            runtime = personal.report,
            card = manifest.card,
        )
    }

    private companion object {
        const val CHECKPOINT_EVERY = 30
        const val PROBES = 16
    }
}
