package org.pocketune.app

import java.io.File
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.yield
import org.pocketune.app.core.Coach
import org.pocketune.app.core.Description
import org.pocketune.app.core.InUse
import org.pocketune.app.core.Model
import org.pocketune.app.core.Opening
import org.pocketune.app.core.Problem
import org.pocketune.app.core.Settings
import org.pocketune.trainer.Accelerator
import org.pocketune.trainer.RuntimeReport
import org.pocketune.trainer.Sample
import org.pocketune.trainer.TrainEvent

/**
 * A coach whose training says what the test lets it say; answers are whatever [answer] is. It fails when two actions on
 * the model run at once.
 */
class FakeCoach(
    private val problem: Problem? = null,
    private val broken: Exception? = null,
    private var generation: Long = 0,
) : Coach {
    val training = Channel<TrainEvent>(Channel.UNLIMITED)
    val calls = mutableListOf<String>()

    /** Answers wait until this is closed. */
    var thinking: Channel<Unit>? = null

    /** An undo takes until something is sent here. */
    val undone = Channel<Unit>(Channel.UNLIMITED)
    var learned: List<Sample> = emptyList()
    var judged: List<Sample> = emptyList()
    var answer = 0
    var failure: Exception? = null

    private var acting: String? = null

    override suspend fun open(): Opening = alone("open") {
        broken?.let { throw it }
        Opening(model, InUse(personal = generation > 0, generation), problem)
    }

    override fun train(samples: List<Sample>, heldOut: List<Sample>): Flow<TrainEvent> = flow {
        alone("train") {
            learned = samples
            judged = heldOut
            for (event in training) {
                emit(event)
                failure?.let { throw it }
                if (event is TrainEvent.Finished || event is TrainEvent.Diverged) break
            }
        }
    }

    override fun pause() = call("pause")

    override fun resume() = call("resume")

    override suspend fun forget() = alone("forget") { call("forget") }

    override suspend fun logits(images: List<FloatArray>, original: Boolean): List<FloatArray> {
        thinking?.receiveCatching()
        return images.map { FloatArray(model.answers) { label -> if (label == answer && !original) 5f else 0f } }
    }

    override suspend fun undo(): InUse = alone("undo") {
        call("undo")
        undone.receive()
        InUse(personal = false, ++generation)
    }

    override suspend fun reset(): InUse = alone("reset") {
        call("reset")
        InUse(personal = false, ++generation)
    }

    private suspend fun <T> alone(name: String, work: suspend () -> T): T {
        check(acting == null) { "$name while $acting runs" }
        acting = name
        try {
            yield()
            return work()
        } finally {
            acting = null
        }
    }

    private fun call(name: String) {
        calls += name
    }

    companion object {
        val model = Model(
            description = Description.parse(File("target/assets/${Description.FILE}").readText()),
            name = "fake",
            answers = 16,
            trained = 1,
            fileBytes = 1,
            stateBytes = 1,
            arenaBytes = null,
            optimizer = "none",
            layers = emptyList(),
            runtime = RuntimeReport("fake", Accelerator.CPU, Accelerator.CPU, ""),
        )
    }
}

class FakeSettings(override var nightly: Boolean = false) : Settings
