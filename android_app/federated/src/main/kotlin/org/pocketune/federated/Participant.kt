package org.pocketune.federated

import java.io.File
import java.nio.ByteBuffer
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import org.pocketune.trainer.DivergedException
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.Plan
import org.pocketune.trainer.PocketuneException
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.Sample
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.putTensors
import org.pocketune.trainer.tensors

/** What a training answers. [slots] are the optimizer's, for the next round of the same run. */
internal class Trained(val arrays: Map<String, Tensor>, val figures: Map<String, Number>, val slots: Map<String, ByteBuffer>)

/**
 * A client's part in a round: a program in a trainer of its own, which never touches the state that the app's own trainer
 * keeps. [shared] is what the app may [adopt]. Whatever a server sends, the worst that comes of it is a round that ends with
 * a sentence.
 */
class Participant private constructor(
    private val trainer: Trainer,
    private val directory: File,
    private val bounds: Bounds,
    private val built: Map<String, ByteBuffer>,
) : AutoCloseable {
    internal val exchange = Exchange(trainer.program, bounds.norm)
    private val alone = Mutex()

    /** What a server's config must name as `program`. */
    val identity: String get() = exchange.identity

    /** Bytes of numbers that leave the device in a round. */
    val bytes: Long get() = exchange.bytes(withSlots = false)

    /** The arrays of the server as they came last, a state file that any trainer of the program restores. */
    val shared: File = File(directory, "shared.state")

    /** The head of a message that was taken and is not answered yet. */
    internal val unanswered: File = File(directory, "unanswered")

    /** Trains on the user's rows from the server's arrays on. Throws [RefusedRoundException] and [PocketuneException]. */
    internal suspend fun train(
        arrays: Map<String, Tensor>,
        config: Map<String, Any>,
        samples: List<Sample>,
        slots: Map<String, ByteBuffer>,
    ): Trained = alone.withLock {
        val plan = plan(config)
        val taken = exchange.taken(arrays)
        keepShared(taken)
        trainer.putTensors(built + slots + exchange.begun(taken, plan.proximalMu))
        val begun = System.nanoTime()
        val loss = fit(samples, plan)
        val state = trainer.tensors()
        val all = exchange.sent(state, exchange.asksSlots(arrays.keys))
        val sent = plan.clippingNorm?.let { clipped(all, arrays, it) } ?: all
        Trained(
            arrays.keys.associateWith { sent.getValue(it) },
            mapOf("num-examples" to counted(samples), "loss" to loss, "seconds" to secondsSince(begun)),
            exchange.slots.values.associate { it.tensor to state.getValue(it.tensor) },
        )
    }

    /** How good the server's arrays are on some rows. Throws as [train]. */
    internal suspend fun evaluate(
        arrays: Map<String, Tensor>,
        config: Map<String, Any>,
        samples: List<Sample>,
    ): Map<String, Number> = alone.withLock {
        plan(config)
        val taken = exchange.taken(arrays)
        keepShared(taken)
        val begun = System.nanoTime()
        val found = trainer.evaluate(samples)
        listOf("num-examples" to counted(samples), "loss" to found.loss, "accuracy" to found.accuracy, "seconds" to secondsSince(begun))
            .mapNotNull { (name, figure) -> figure?.let { name to it as Number } }.toMap()
    }

    /** What a client says of itself where it is asked. */
    internal fun describe(samples: List<Sample>): Map<String, Any> =
        mapOf("program" to identity, "num-examples" to counted(samples), "bytes" to bytes)

    /** Gives the trainer's memory back. */
    override fun close(): Unit = trainer.close()

    /** The mean loss of the last epoch, while it trains. */
    private suspend fun fit(samples: List<Sample>, plan: RoundPlan): Double {
        val first = (plan.round - 1) * plan.epochs
        val how = Plan(
            plan.epochs, plan.learningRate?.let(LearningRate::Constant),
            seed = plan.seed, checkpointEvery = 0, firstEpoch = first, steps = plan.steps,
        )
        var epoch = -1
        val losses = mutableListOf<Float>()
        trainer.fit(samples, how).collect { event ->
            if (event is TrainEvent.Diverged) throw DivergedException(event.why)
            if (event is TrainEvent.Step) {
                if (event.epoch != epoch) losses.clear()
                epoch = event.epoch
                losses += event.loss
            }
        }
        return losses.average()
    }

    private suspend fun keepShared(taken: Map<String, ByteBuffer>) {
        trainer.putTensors(built + taken)
        trainer.export(shared)
    }

    private fun plan(config: Map<String, Any>): RoundPlan {
        val asked = config["program"]
        if (asked != identity) {
            val what = if (asked == null) "no program" else "the program ${asked.toString().take(SHOWN)}"
            throw RefusedRoundException(
                "the server's config names $what, and this client has ${identity.take(SHOWN)}: both need the same build of " +
                    "the same model (config['program'] = pocketune.federated.identity(PROGRAM))",
            )
        }
        val plan = RoundPlan.of(config, bounds)
        if (plan.proximalMu != null && plan.proximalMu != 0f && !exchange.hasProximal) {
            throw RefusedRoundException(
                "the server asks for FedProx's term (proximal-mu), and this program was built without it: build(..., proximal=0.01)",
            )
        }
        return plan
    }

    private fun counted(samples: List<Sample>): Int = samples.count { it.weight != 0f }

    private fun secondsSince(begun: Long): Double = (System.nanoTime() - begun) / NANOS

    companion object {
        private const val SHOWN = 16
        private const val NANOS = 1e9

        /**
         * Opens a program.
         *
         * @param directory for this participant alone, not that of the user's state; what a round that was killed left there goes.
         * @throws PocketuneException the program is none that several can train, or the runtime does not take it.
         */
        suspend fun open(program: Program, runtime: RuntimeFactory, directory: File, bounds: Bounds = Bounds()): Participant {
            program.manifest.federatedIdentity
            val rounds = File(directory, "round")
            rounds.deleteRecursively()
            val trainer = Trainer.open(program, runtime, Store(rounds))
            return Participant(trainer, directory, bounds, trainer.tensors())
        }
    }
}
