package org.pocketune.trainer

import java.io.File
import java.util.concurrent.atomic.AtomicBoolean
import kotlin.math.min
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOn
import kotlinx.coroutines.withContext

/**
 * Trains and uses a program on the device. Any thread may call anything at any time; one thread of its own runs the
 * runtime. `infer` and `evaluate` are answered between the steps of a running training, with its present state; what
 * would change or save the state meanwhile throws [BusyException]. After [close] everything throws [ClosedException].
 */
class Trainer private constructor(
    /** The program, checked. */
    val program: Program,
    private val runtime: TrainingRuntime,
    private val store: Store,
    private val limits: Limits,
    private val owner: Owner,
    guards: Guards,
) : AutoCloseable {
    /** What really runs where. */
    val report: RuntimeReport = runtime.report

    private val manifest = program.manifest
    internal val engine = Engine(program, WhileOpen(runtime, owner))
    private val inputs = Inputs(manifest, limits)
    private val classes = RunTimeClasses(program, engine, ::checkGoesOn)
    private val gate = Gate(guards)
    private val spec = StateSpec(program)
    private val personal = store.personal(spec, limits)
    private val checkpoints = store.checkpoints(spec, limits)
    private val isTraining = AtomicBoolean()

    /**
     * A training: cold, one at a time, cancellable between steps. It is at most one step ahead of its collector; add
     * `.buffer()` to let it run on while the collector is busy.
     *
     * It starts from the state in memory. At its end the new state is saved and becomes the present one if accuracy on
     * [heldOut] did not fall (without any it always does); [rollback] brings the one before back. A training that is
     * cancelled, fails or diverges leaves the state in memory and on the disk as it was.
     *
     * A training that died with its process goes on from its last checkpoint when the same samples, plan and state are
     * given again (an early stop then counts from there); [forget] drops it.
     *
     * With a [memory] some of the samples are kept aside by it, its rows are replayed (beside those of the plan, whose share
     * is that of both; half without any), its held-out rows are judged beside [heldOut], and all samples enter it before
     * [TrainEvent.Finished], adopted or not. One of another program throws [ReplayException].
     *
     * Before the first step the flow throws [InputException], [BusyException], and [StateException] when a state in the
     * store must not be overwritten ([setAside] moves it away); then [RuntimeFailedException], [StorageException], and
     * [ClosedException] when the trainer is closed meanwhile.
     */
    fun fit(
        samples: List<Sample>,
        plan: Plan = Plan(),
        heldOut: List<Sample> = emptyList(),
        memory: ReplayMemory? = null,
    ): Flow<TrainEvent> =
        channelFlow {
            owner.checkOpen()
            inputs.check(samples)
            memory?.checkBelongsTo(manifest)
            val given = if (memory == null) Curated(samples, plan, heldOut) {}
            else Curated.of(memory, owner.run { classes.namesInMemory() }, samples, plan, heldOut)
            if (given.heldOut.isNotEmpty()) inputs.checkJudged(given.heldOut, "heldOut")
            inputs.check(given.plan)
            inputs.checkEpoch(Curriculum(given.samples, given.plan, manifest.batch).rows)
            personal.checkReplaceable()
            if (!isTraining.compareAndSet(false, true)) throw BusyException("a training is running already")
            try { // from here on no class is forgotten
                owner.run { classes.checkKnown(samples + given.heldOut + given.plan.replay?.samples.orEmpty()) }
                val shop = Workshop(program, engine, personal, checkpoints, gate, owner, ::checkGoesOn)
                Training(shop, given, this).run()
            } finally {
                isTraining.set(false)
            }
        }.buffer(Channel.RENDEZVOUS).flowOn(owner.dispatcher)

    /** Adds samples to a memory without a training. Throws [InputException], [ReplayException] and [StorageException]. */
    suspend fun remember(memory: ReplayMemory, samples: List<Sample>): Unit = alone {
        inputs.check(samples)
        classes.checkKnown(samples)
        memory.checkBelongsTo(manifest)
        memory.visit(samples, classes.namesInMemory()).enter()
    }

    /** Lets the running training, or the next, wait before its next step; it says [TrainEvent.Paused]. */
    fun pause() {
        gate.isHeld.value = true
    }

    /** Ends [pause]. */
    fun resume() {
        gate.isHeld.value = false
    }

    /** Drops the checkpoint of an unfinished training. */
    suspend fun forget(): Unit = alone { checkpoints.delete() }

    /** The model's outputs for some rows: for each row every output by name. Throws [InputException]. */
    suspend fun infer(rows: List<Map<String, Values>>): List<Map<String, Values>> = owner.run {
        inputs.check(rows)
        engine.infer(rows.map { Sample(it, NOTHING) }.byInference(manifest), ::checkGoesOn)
    }

    /**
     * The ids that a language model writes behind others, at most [most] and as far as a row of the program holds them; it ends
     * at one of [stop], which is not given. Cold: each collector has a text of its own, with the keys and values of what was
     * read kept. A token is computed when the one before was collected, by the state of that moment, also between the steps of
     * a running training. Cancelling takes effect after the call that runs.
     *
     * The flow throws [InputException] (also for a program without the signature `generate`), [DivergedException],
     * [RuntimeFailedException] and [ClosedException].
     */
    fun generate(
        ids: IntArray,
        most: Int = 64,
        stop: Set<Int> = emptySet(),
        sampling: Sampling = Sampling(),
    ): Flow<Int> = flow {
        owner.checkOpen()
        val choice = TokenChoice(sampling)
        val text = KeptText(manifest, engine).apply { check(ids) }
        var unread = ids.copyOf()
        repeat(min(most, text.room(ids.size))) {
            val token = owner.run { choice.next(text.read(unread, ::checkGoesOn)) }
            if (token in stop) return@flow
            emit(token)
            unread = intArrayOf(token)
        }
    }

    /** Mean loss and accuracy. Throws [InputException] and [DivergedException]. */
    suspend fun evaluate(samples: List<Sample>): Evaluation = owner.run {
        inputs.checkJudged(samples)
        classes.checkKnown(samples)
        engine.evaluate(samples.inBatches(manifest.microBatch), between = ::checkGoesOn)
    }

    /**
     * Lets those input channels train that have the most Fisher information on a user's first samples: before the
     * first training, of a state as it was built, or with [reset] after going back to it. The state in memory has them
     * from then on; [save] keeps it, as the next training does.
     *
     * Returns the channels by weight, in order. Throws [InputException], also when the state has trained, whose changes
     * belong to the channels that it was trained with, and [DivergedException].
     */
    suspend fun chooseChannels(samples: List<Sample>, reset: Boolean = false): Map<String, IntArray> = alone {
        inputs.checkChoosing(samples)
        val choice = ChannelChoice(program)
        if (reset) {
            engine.write(program.initialState())
        } else if (choice.hasTrained(engine.read())) {
            throw InputException("the training has begun with other channels: choose them before it, or with reset")
        }
        val chosen = choice.largest(engine.fisher(samples.inBatches(manifest.microBatch)))
        engine.write(choice.put(chosen))
        chosen
    }

    /**
     * Lets other channels train: weights take up what was added to theirs, what the optimizer keeps of that begins anew, and
     * the training goes on; `Plan(redraw = true)` does it each epoch. They are drawn by a seed, a whole number from 0 on, or
     * with samples those with the most Fisher information. Returns them by weight; throws as [chooseChannels].
     */
    suspend fun redrawChannels(seed: Long): Map<String, IntArray> = alone {
        inputs.checkRedrawn()
        if (seed < 0) throw InputException("seed must be a whole number from 0 on, got $seed")
        redraw { drawn(seed, 0) }
    }

    /** The same by information on samples. */
    suspend fun redrawChannels(samples: List<Sample>): Map<String, IntArray> = alone {
        inputs.checkRedrawn()
        inputs.checkChoosing(samples)
        val information = engine.fisher(samples.inBatches(manifest.microBatch))
        redraw { ChannelChoice(program).largest(information) }
    }

    /** Lets other channels train, and returns those of all weights. */
    private fun redraw(chosen: RedrawnChannels.() -> Map<String, IntArray>): Map<String, IntArray> {
        val state = with(RedrawnChannels(program)) { redrawn(engine.read(), chosen()) }
        engine.write(state)
        return ChannelChoice(program).trained(state)
    }

    /**
     * What each class is called, by label; null where there is room for one. Throws [InputException] for a program whose
     * last layer is set by steps alone, as all that follow on classes.
     */
    suspend fun classes(): List<String?> = owner.run { classes.names().map { name -> name.ifEmpty { null } } }

    /**
     * Sets the last layer to that which finds the class with the nearest mean, without a gradient: an exact start for
     * steps, for which the optimizer's slots begin anew. Each known class has at least one of the samples.
     *
     * With a [shrinkage] nearest is meant by the covariance of the samples' features within their classes: a linear
     * discriminant, whose priors are the shares of the samples. No class can be added to that by its samples.
     */
    suspend fun setClassMeans(samples: List<Sample>, shrinkage: Shrinkage? = null): Unit = alone {
        inputs.check(samples)
        classes.setMeans(samples, shrinkage)
    }

    /**
     * Adds a class where there is room for one, and returns its label: the mean of the features of [rows], without a gradient
     * and with no row of the others changed; or without rows of weights 0, for steps that follow. [save] keeps it with its
     * name, as the next training does.
     */
    suspend fun addClass(name: String, rows: List<Map<String, Values>>? = null): Int = alone {
        rows?.let(inputs::check)
        classes.add(name, rows?.map { row -> Sample(row, NOTHING) })
    }

    /** Gives a class another name. */
    suspend fun renameClass(name: String, new: String): Unit = alone { classes.change { rename(name, new) } }

    /** Forgets a class that was added: its label is free again. */
    suspend fun forgetClass(name: String): Unit = alone { classes.change { forget(name) } }

    /** Writes the state in memory as the next generation and returns its number. */
    suspend fun save(): Long = alone { personal.save(engine.read()) }

    /**
     * Takes the newest good state of the store, also one of another build of the same model. Of one of another program
     * [adopt] takes over what matches; [save] may then overwrite it. Throws [StateException], which says what differs; the
     * state in memory then stays.
     */
    suspend fun restore(adopt: Adopt? = null): Restored = alone { take(personal.load(adopt)) }

    /** Takes a state from another file, such as one of the host's; [save] keeps it. */
    suspend fun restore(file: File, adopt: Adopt? = null): Restored = alone {
        take(store.elsewhere(file, spec, limits).load(adopt))
    }

    /**
     * Undo: the generation before the newest becomes the newest, so that a second call is Redo. With one good generation
     * only, the state that was built takes its place. Throws [NoStateException] when nothing was saved.
     */
    suspend fun rollback(): Restored = alone {
        val isWhole = personal.load().lost == null
        // Where the newest was lost, the one before is what is in use: there is nothing else to go back to.
        val before = if (isWhole) personal.previous() else null
        val tensors = before?.tensors ?: program.initialState()
        checkTensors(tensors)
        // The disk first: when it refuses, nothing has happened.
        val generation = personal.save(tensors)
        engine.write(tensors)
        Restored(generation, null)
    }

    /**
     * Back to what was built, saved as a generation if there is any, so that [rollback] brings the user's back. Returns
     * that generation, null where nothing was saved.
     */
    suspend fun reset(): Long? = alone {
        val tensors = program.initialState()
        val generation = try {
            personal.load()
            personal.save(tensors)
        } catch (_: NoStateException) {
            // There is nothing to be undone.
            null
        }
        engine.write(tensors)
        generation
    }

    /**
     * Moves saved states that cannot be used (damaged, of another program or version) out of the way, to names that end
     * in `.unusable`, so that new ones can be saved. The state in memory stays.
     */
    suspend fun setAside(): Unit = alone { personal.setAside() }

    /** Writes the state in memory to a file for the host or another device. Returns its generation, 1 if it is new. */
    suspend fun export(file: File): Long = alone {
        store.elsewhere(file, spec, limits).save(engine.read())
    }

    /**
     * Writes the model with the weights in memory as a plain `.tflite`, to the byte what the host's `export_inference`
     * writes: nothing of the training, its only signature is `infer`. Cancelling leaves no file.
     *
     * Throws [DivergedException], [StorageException], and [InputException] for a program with adapters.
     */
    suspend fun exportInference(file: File) {
        val state = alone { engine.read() }
        state.firstOrNull { !it.isFinite() }?.let {
            throw DivergedException("the model is not exported: ${it.name} holds NaN or infinity")
        }
        withContext(Dispatchers.IO) {
            store.write(file, program.plainModel(state).asSequence().onEach { ensureActive() })
        }
    }

    /** Waits for the step that runs and gives everything back. What was not saved is gone; closing twice is fine. */
    override fun close(): Unit = owner.close {
        runtime.close()
        // A training that waits must learn that it is over.
        resume()
    }

    private fun take(loaded: Loaded): Restored {
        val compared = loaded.state.compared
        val taken = compared.tensors.associateBy { it.name }
        val tensors = if (compared.left.isEmpty()) compared.tensors else program.initialState().map { taken[it.name] ?: it }
        checkTensors(tensors)
        engine.write(tensors)
        val unproven = UNPROVEN.takeIf { compared.differences.isEmpty() && !compared.isProven }
        return with(compared) { Restored(loaded.state.generation, loaded.lost, unproven, adopted, left, differences) }
    }

    private fun checkTensors(tensors: List<StoredTensor>) {
        if (!manifest.isStateOf(tensors)) {
            throw DamagedStateException("the tensors of the state are not those of this program")
        }
    }

    /** On the trainer's thread, whole or not at all, and never while a training runs. */
    internal suspend fun <T> alone(work: suspend () -> T): T = owner.run {
        if (isTraining.get()) throw BusyException("a training is running: cancel it or wait for its end")
        withContext(NonCancellable) { work() }
    }

    /** Between two calls of the runtime: stops what was cancelled or closed. */
    private suspend fun checkGoesOn() {
        owner.checkOpen()
        currentCoroutineContext().ensureActive()
    }

    companion object {
        /** The target of a row that is not judged. */
        private val NOTHING = Values.Floats(FloatArray(0))

        /**
         * Loads a program. The state is as built until [restore].
         *
         * @throws RuntimeFailedException the runtime does not take the program.
         */
        suspend fun open(
            program: Program,
            runtime: RuntimeFactory,
            store: Store,
            guards: Guards = Guards(),
            limits: Limits = Limits(),
        ): Trainer {
            val owner = Owner("pocketune")
            var opened: TrainingRuntime? = null
            try {
                return owner.run {
                    val running = runtime.open(program).also { opened = it }
                    Trainer(program, running, store, limits, owner, guards)
                }
            } catch (error: Throwable) {
                // Also when the caller was cancelled while the runtime loaded.
                owner.close { opened?.close() }
                throw error
            }
        }
    }
}
