package org.pocketune.trainer

import java.nio.ByteBuffer
import java.security.MessageDigest
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.channels.ProducerScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.isActive
import kotlinx.coroutines.launch
import kotlinx.coroutines.yield

/** What a training works with. */
internal class Workshop(
    val program: Program,
    val engine: Engine,
    val personal: TwoGenerations,
    val checkpoints: Checkpoints,
    val gate: Gate,
    val owner: Owner,
    val checkGoesOn: suspend () -> Unit,
)

/**
 * One training, from the state in memory to an adopted one or back. Runs on the trainer's thread, and gives it to others
 * between two steps.
 *
 * @param given checked.
 */
internal class Training(
    private val shop: Workshop,
    private val given: Curated,
    private val events: ProducerScope<TrainEvent>,
) {
    private val samples = given.samples
    private val plan = given.plan
    private val heldOut = given.heldOut
    private val engine = shop.engine
    private val manifest = shop.program.manifest
    private val curriculum = Curriculum(samples, plan, manifest.batch)
    private val perEpoch = curriculum.stepsPerEpoch
    private val rates = rates()
    private val steps = rates.size
    private val features = KeptFeatures(manifest, engine)
    private val watch = Watch(events, plan.stalledMillis)
    private val before = engine.read()
    private val fingerprint by lazy(::digest)
    private val progress = Judge(plan.earlyStop)
    private val standstill = Standstill(rates, manifest.runningRate, engine::read)

    /** Steps of the last checkpoint. */
    private var saved = 0

    /** Whether the state in memory is the one that shall stay. */
    private var isSettled = false

    /** All of it; afterwards the state is adopted or what it was. */
    suspend fun run() {
        val watching = watch.start()
        try {
            train()
        } catch (error: Throwable) {
            if (!isSettled && shop.owner.isOpen) putBackAfter(error)
            throw error
        } finally {
            watching.cancel()
        }
    }

    private suspend fun train() {
        val asBuilt = evaluate()
        val done = if (plan.checkpointEvery > 0) takeUp() else 0
        saved = done
        events.send(TrainEvent.Started(samples.size, heldOut.size, plan.epochs, steps, done, asBuilt))
        features.keep(samples + plan.replay?.samples.orEmpty(), shop.checkGoesOn)
        for (epoch in done / perEpoch until plan.epochs) {
            if (!epoch(epoch, done) || !judge(epoch)) return
            if (progress.isOver || (epoch + 1) * perEpoch >= steps) break
        }
        progress.bestState?.let(engine::write)
        finish(asBuilt)
    }

    /** Goes on from a checkpoint of this very training; returns how many steps were done. */
    private fun takeUp(): Int {
        val found = shop.checkpoints.load(fingerprint) ?: return 0
        if (found.steps >= steps || !manifest.isStateOf(found.tensors)) return 0
        engine.write(found.tensors)
        return found.steps
    }

    /** The steps of an epoch after the first [done] of the training; false when one diverged. */
    private suspend fun epoch(epoch: Int, done: Int): Boolean {
        val batches = curriculum.batches(plan.firstEpoch + epoch)
        if (epoch * perEpoch >= done) redraw(plan.firstEpoch + epoch)
        val skipping = curriculum.skipping
        skipping?.leftOut?.let { if (it > 0) events.send(TrainEvent.Skipped(epoch, it, curriculum.rows)) }
        for ((i, rows) in batches.withIndex()) {
            val step = epoch * perEpoch + i
            if (step < done) continue
            if (step >= steps) return true
            shop.gate.pass(events, shop.checkGoesOn)
            standstill.at(step)?.let { why -> events.send(TrainEvent.Standstill(step, why)) }
            val started = System.nanoTime()
            val loss =
                try {
                    watch.over(step) { engine.train(features.of(rows), rates[step], features.stepName) }
                } catch (error: DivergedException) {
                    return diverged(epoch, step, Float.NaN, checkNotNull(error.message))
                }
            val millis = (System.nanoTime() - started) / NANOS_PER_MILLI
            if (!loss.isFinite()) return diverged(epoch, step, loss, manifest.refusal(loss, rates[step]))
            skipping?.see(rows.places, engine.rowLosses)
            events.send(TrainEvent.Step(epoch, step, loss, millis, rows.weight))
            if (isCheckpoint(step + 1) && !checkpoint(epoch, step)) return false
            yield()
        }
        val end = (epoch + 1) * perEpoch
        return !isCheckpointBehind(epoch, end) || checkpoint(epoch, end - 1)
    }

    /** Other channels train from the beginning of an epoch on; the first has those that it finds. */
    private fun redraw(number: Int) {
        if (!plan.redraw || number == 0) return
        val channels = RedrawnChannels(shop.program)
        engine.write(channels.redrawn(engine.read(), channels.drawn(plan.seed, number)))
    }

    private fun isCheckpoint(done: Int) =
        plan.skip == null && plan.checkpointEvery > 0 && done % plan.checkpointEvery == 0 && done < steps

    /** Where rows are skipped, a checkpoint stands before an epoch in which all come: nobody needs their losses then. */
    private fun isCheckpointBehind(epoch: Int, done: Int): Boolean {
        val skipping = curriculum.skipping ?: return false
        val isDue = plan.checkpointEvery > 0 && done - saved >= plan.checkpointEvery && done < steps
        return isDue && skipping.comeAllIn(plan.firstEpoch + epoch + 1)
    }

    private suspend fun checkpoint(epoch: Int, step: Int): Boolean {
        shop.checkGoesOn()
        val state = engine.read()
        if (!state.isFinite()) return diverged(epoch, step, Float.NaN, WEIGHTS_LOST)
        shop.checkpoints.save(fingerprint, step + 1, state)
        saved = step + 1
        events.send(TrainEvent.Checkpointed(step + 1))
        return true
    }

    /** How good the model is after an epoch; false when it diverged. */
    private suspend fun judge(epoch: Int): Boolean {
        val now =
            try {
                evaluate() ?: return true
            } catch (_: DivergedException) {
                return diverged(epoch, (epoch + 1) * perEpoch - 1, Float.NaN, "the loss on the held-out samples is not finite")
            }
        val isBest = progress.add(now, engine::read)
        events.send(TrainEvent.Evaluated(epoch, now, isBest))
        return true
    }

    private suspend fun finish(asBuilt: Evaluation?) {
        val after = progress.kept
        val state = engine.read()
        if (!state.isFinite()) {
            diverged(plan.epochs - 1, steps - 1, Float.NaN, WEIGHTS_LOST)
            return
        }
        shop.checkGoesOn()
        val isWorse = asBuilt != null && after != null && !asBuilt.isMatchedBy(after)
        val adopted = if (isWorse) null else shop.personal.save(state)
        if (isWorse) engine.write(before)
        isSettled = true
        dropCheckpoints()
        given.enter()
        events.send(TrainEvent.Finished(asBuilt, after, progress.isOver, adopted))
    }

    /** Always false. */
    private suspend fun diverged(epoch: Int, step: Int, loss: Float, why: String): Boolean {
        engine.write(before)
        isSettled = true
        dropCheckpoints()
        events.send(TrainEvent.Diverged(epoch, step, loss, why))
        return false
    }

    private fun dropCheckpoints() {
        try {
            shop.checkpoints.delete()
        } catch (_: StorageException) {
            // They belong to a training that is over: nothing takes them up again, and the next ones overwrite them.
        }
    }

    private suspend fun evaluate(): Evaluation? =
        if (heldOut.isEmpty()) null
        else engine.evaluate(features.judged(heldOut, shop.checkGoesOn), features.evaluateName, shop.checkGoesOn)

    private fun putBackAfter(error: Throwable) {
        try {
            engine.write(before)
        } catch (second: RuntimeFailedException) {
            error.addSuppressed(second)
        }
    }

    private fun rates(): FloatArray {
        val count = minOf(plan.epochs.toLong() * perEpoch, plan.steps?.toLong() ?: Long.MAX_VALUE)
        if (count > MOST_STEPS) throw InputException("$count steps are too many, the limit is $MOST_STEPS")
        val running = manifest.runningRate
        if (running != null && plan.learningRate != null) {
            throw InputException(
                "learningRate: the rate of this program runs in it (${running.description}): leave it out. rateScale " +
                    "multiplies that rate; for rates of your own build with a constant one"
            )
        }
        val rate = plan.learningRate ?: LearningRate.Constant(manifest.learningRate?.toFloat() ?: 1f)
        val rates = FloatArray(count.toInt()) { rate.at(it, count.toInt()) * plan.rateScale }
        val bad = rates.indexOfFirst { !it.isFinite() || it < 0 }
        if (bad >= 0) throw InputException("learningRate: ${rates[bad]} at step $bad")
        return rates
    }

    /** A digest of all that decides the course of a training. */
    private fun digest(): String {
        val digest = MessageDigest.getInstance("SHA-256")
        val orders = listOf(plan.epochs, plan.shuffle, plan.seed, plan.replay?.share, plan.balanceClasses, plan.firstEpoch)
        digest.update((orders + listOfNotNull(plan.skip, "redraw".takeIf { plan.redraw })).toString().toByteArray())
        digest.update(Values.Floats(rates).bytes())
        before.forEach { digest.update(it.bytes.duplicate()) }
        for (sample in samples + plan.replay?.samples.orEmpty()) {
            digest.update(sample.inputs.keys.joinToString().toByteArray())
            sample.inputs.values.forEach { digest.update(it.bytes()) }
            sample.targets.toSortedMap().values.forEach { digest.update(it.bytes()) }
            digest.update(Values.Floats(floatArrayOf(sample.weight)).bytes())
        }
        return digest.digest().toHex()
    }

    private companion object {
        const val NANOS_PER_MILLI = 1e6
        const val MOST_STEPS = 10_000_000
        const val WEIGHTS_LOST = "the weights are not finite"
    }
}

/** Follows the held-out loss from epoch to epoch. */
private class Judge(private val stop: EarlyStop?) {
    private var best: Evaluation? = null
    private var last: Evaluation? = null
    private var epochsWithoutGain = 0

    /** Of the best epoch; only where there is an early stop. */
    var bestState: List<StoredTensor>? = null
        private set

    /** It is time to stop. */
    val isOver: Boolean get() = stop != null && epochsWithoutGain >= stop.patience

    /** Of the state that is kept. */
    val kept: Evaluation? get() = if (bestState == null) last else best

    /** Whether it is the best so far. */
    fun add(now: Evaluation, state: () -> List<StoredTensor>): Boolean {
        val isBest = best.let { it == null || now.loss < it.loss }
        epochsWithoutGain = if (isBest) 0 else epochsWithoutGain + 1
        last = now
        if (isBest) best = now
        if (isBest && stop != null) bestState = state()
        return isBest
    }
}

/**
 * Finds the step from which on the learning rate is 0.
 *
 * The steps that are left until a schedule has run out are counted down: to read the counter of the state copies all of
 * it. A step may count less than 1, so it is read again before anything is said.
 */
private class Standstill(
    private val rates: FloatArray,
    private val running: RunningRate?,
    private val state: () -> List<StoredTensor>,
) {
    private var left = 0
    private var isTold = false

    /** Why nothing changes from a step on, which comes next; null otherwise, and once it was told. */
    fun at(step: Int): String? {
        if (isTold) return null
        val why = if ((step until rates.size).all { rates[it] == 0f }) "the learning rate is 0" else ended()
        isTold = why != null
        return why
    }

    private fun ended(): String? {
        val end = running?.zeroFrom ?: return null
        if (--left > 0) return null
        val done = running.counter?.let { counter -> state().first { it.name == counter }.number().toInt() } ?: end
        left = end - done
        if (left > 0) return null
        return "the learning rate is 0: it runs in the program (${running.description}), and that has ended. " +
            "A program that goes on learning is built with a constant rate"
    }
}

/** Tells of a step that runs for too long; it cannot be interrupted, but the app can say so. */
private class Watch(private val events: ProducerScope<TrainEvent>, private val limit: Long) {
    @Volatile private var step = 0

    /** When the present step began, in nanoseconds; 0 between steps. */
    @Volatile private var began = 0L

    /** Watches one step. */
    fun <T> over(number: Int, work: () -> T): T {
        step = number
        began = System.nanoTime()
        return work().also { began = 0 }
    }

    /** On a thread of another pool, for the trainer's own is in the step. */
    fun start(): Job = (events as CoroutineScope).launch(Dispatchers.Default) {
        var told = -1
        while (isActive) {
            delay(limit / 2 + 1)
            val since = began
            val millis = (System.nanoTime() - since) / NANOS_PER_MILLI
            if (since != 0L && millis > limit && told != step) {
                told = step
                events.send(TrainEvent.Stalled(step, millis))
            }
        }
    }

    private companion object {
        const val NANOS_PER_MILLI = 1_000_000L
    }
}

/** Whether tensors are those of this program, in its order, and name channels that its weights have. */
internal fun Manifest.isStateOf(tensors: List<StoredTensor>): Boolean =
    stateTensors.map { Triple(it.tensor, it.shape, it.dtype) } == tensors.map { Triple(it.name, it.shape, it.dtype) } &&
        choices.all { choice -> choice.isGood(tensors.first { it.name == choice.indices }.ints()) }

private fun List<StoredTensor>.isFinite() = all { it.isFinite() }

private fun Values.bytes(): ByteBuffer {
    val buffer = ByteBuffer.allocate(size * Float.SIZE_BYTES)
    when (this) {
        is Values.Floats -> buffer.asFloatBuffer().put(array)
        is Values.Ints -> buffer.asIntBuffer().put(array)
        is Values.Bools -> array.forEach { buffer.put(if (it) 1 else 0) }
    }
    return buffer.apply { clear() }
}
