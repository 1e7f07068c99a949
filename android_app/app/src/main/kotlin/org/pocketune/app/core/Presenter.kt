package org.pocketune.app.core

import java.io.IOException
import kotlin.math.exp
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Job
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.pocketune.trainer.Sample
import org.pocketune.trainer.TrainEvent

/** What the user chose once and for all. */
interface Settings {
    var nightly: Boolean
}

/**
 * From what the user does to what the app shows. Knows nothing of Android.
 *
 * @property device heat and charge as they change.
 * @property io where files are read and written.
 */
class Presenter(
    private val coach: Coach,
    private val notebook: Notebook,
    private val settings: Settings,
    private val device: Flow<DeviceFacts>,
    private val io: CoroutineDispatcher,
) {
    /** Every state, beginning with the empty one. Collect it once: it works on the disk and with the model. */
    fun states(events: Flow<Event>): Flow<UiState> = channelFlow {
        val inbox = Channel<Message>(Channel.UNLIMITED)
        val work = Work(this, inbox)
        launch { events.collect(inbox::send) }
        launch { device.collect { inbox.send(News.DeviceChanged(it)) } }
        work.load()
        var state = UiState()
        send(state)
        for (message in inbox) {
            val before = state
            state = before.after(message)
            if (state != before) send(state)
            work.follow(message, before, state)
        }
    }

    /**
     * What events cause beyond a change of the state; its results come back as news. What works on the model does so one
     * at a time, in the order in which it was asked for; only recognition, which changes nothing, runs beside it.
     */
    private inner class Work(private val scope: CoroutineScope, private val inbox: Channel<Message>) {
        private val unwritten = Channel<Notes>(Channel.CONFLATED)
        private val actions = Channel<suspend () -> Unit>(Channel.UNLIMITED)
        private var training: Job? = null
        private var recognition: Job? = null

        fun load() {
            start {
                val notes = try {
                    withContext(io) { notebook.read() }
                } catch (_: IOException) {
                    withContext(io) { notebook.putAside() }
                    inbox.send(News.Failed(Problem.DRAWINGS_DAMAGED))
                    Notes()
                }
                inbox.send(News.NotesRead(notes, settings.nightly))
                enqueue { openModel() }
                for (latest in unwritten) report { withContext(io) { notebook.write(latest) } }
            }
            start { for (action in actions) action() }
        }

        /** An action on the model. [last] comes after it, also where it failed. */
        private fun enqueue(last: () -> News? = { null }, action: suspend () -> Unit) {
            actions.trySend {
                report(action)
                last()?.let { inbox.send(it) }
            }
        }

        private suspend fun openModel() {
            val opening = coach.open()
            inbox.send(News.Opened(opening.model, opening.inUse))
            opening.problem?.let { inbox.send(News.Failed(it)) }
        }

        fun follow(message: Message, before: UiState, state: UiState) {
            if (message !is News.NotesRead && state.notes != before.notes) unwritten.trySend(state.notes)
            when (message) {
                is Event.Personalize ->
                    if (before.training == Training.Idle && state.training is Training.Running) personalize(state)
                is Event.Pause -> if (state.training is Training.Running) coach.pause()
                is Event.Resume -> if (state.training is Training.Running) coach.resume()
                is Event.Cancel -> if (before.training is Training.Running) training?.cancel()
                is Event.SetNightly -> start { withContext(io) { settings.nightly = message.on } }
                is Event.Undo -> if (state.isSwitching && !before.isSwitching) switch {
                    News.Switched(if (state.switched == null) Switch.UNDONE else null, coach.undo())
                }
                is Event.Reset -> if (state.isSwitching && !before.isSwitching) switch {
                    News.Switched(Switch.RESET, coach.reset())
                }
                is Event.Try, is Event.Return, is News.Opened, is News.Switched, is News.Compared -> recognise(state)
                else -> Unit
            }
        }

        private fun switch(work: suspend () -> News.Switched) {
            var news: News = News.NotSwitched
            enqueue(last = { news }) { news = work() }
        }

        private fun personalize(state: UiState) {
            // A pause of the last training that came too late for it must not hold this one.
            coach.resume()
            val job = scope.launch(start = CoroutineStart.LAZY) { report { train(state) } }
            training = job
            enqueue(last = { News.Ended }) {
                job.join()
                // By the user; a process that ends ends this too, and the next one goes on.
                if (job.isCancelled) forget()
            }
        }

        /** Drops what is half done. The model may have been taken in the last moment: looks which one is in use. */
        private suspend fun forget() {
            coach.forget()
            openModel()
        }

        private suspend fun train(state: UiState) {
            val model = checkNotNull(state.model)
            val judged = state.heldOut
            val before = bestAnswers(state, judged)
            var end: TrainEvent? = null
            coach.train(state.toLearn.map { it.sample(model) }, judged.map { it.sample(model) }).collect {
                inbox.send(News.Trained(it))
                end = it
            }
            when (val last = end) {
                is TrainEvent.Finished ->
                    inbox.send(News.Compared(compare(state, judged, before, last), state.notes.newest, last.adopted))
                is TrainEvent.Diverged -> inbox.send(News.Failed(Problem.DIVERGED))
                else -> Unit
            }
        }

        private suspend fun compare(
            state: UiState,
            judged: List<Drawing>,
            before: List<Int>,
            end: TrainEvent.Finished,
        ): Comparison {
            val after = bestAnswers(state, judged)
            return Comparison(
                before = end.before?.accuracy ?: 0.0,
                after = end.after?.accuracy ?: 0.0,
                heldOut = judged.size,
                changes = judged.indices.filter { before[it] != after[it] }
                    .map { Change(judged[it], before[it], after[it]) },
                standing = if (end.adopted == null) Standing.REFUSED else Standing.OFFERED,
            )
        }

        private fun recognise(state: UiState) {
            recognition?.cancel()
            val strokes = state.trial.strokes
            if (strokes.isEmpty() || state.model == null) return
            recognition = start {
                val image = listOf(state.model.description.preprocessing.image(strokes))
                val (original, personal) = listOf(true, false).map { coach.logits(image, it).single() }
                inbox.send(News.Recognised(Trial(strokes, ranked(state, original), ranked(state, personal))))
            }
        }

        private suspend fun bestAnswers(state: UiState, drawings: List<Drawing>): List<Int> {
            val preprocessing = checkNotNull(state.model).description.preprocessing
            return coach.logits(drawings.map { preprocessing.image(it.strokes) }).map { ranked(state, it).first().label }
        }

        private fun start(block: suspend () -> Unit): Job = scope.launch { report(block) }

        /** Runs, and tells of what the user should know; what is not of that kind is a mistake of ours. */
        private suspend fun report(block: suspend () -> Unit) = try {
            block()
        } catch (e: Exception) {
            inbox.send(News.Failed(problemOf(e) ?: throw e))
        }
    }
}

private fun Drawing.sample(model: Model) = Sample(model.description.preprocessing.image(strokes), label)

/** The classes that have a name, the most likely first. */
private fun ranked(state: UiState, logits: FloatArray): List<Answer> {
    val named = logits.take(state.labels.size)
    val highest = named.max()
    val shares = named.map { exp(it - highest) }
    return shares.mapIndexed { label, share -> Answer(label, share / shares.sum()) }.sortedByDescending { it.sureness }
}
