package org.pocketune.federated

import java.io.File
import java.nio.ByteBuffer
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import org.pocketune.trainer.DivergedException
import org.pocketune.trainer.LearningRate
import org.pocketune.trainer.NoStateException
import org.pocketune.trainer.Plan
import org.pocketune.trainer.PocketuneException
import org.pocketune.trainer.Program
import org.pocketune.trainer.RuntimeFactory
import org.pocketune.trainer.Sample
import org.pocketune.trainer.StateException
import org.pocketune.trainer.Store
import org.pocketune.trainer.TrainEvent
import org.pocketune.trainer.Trainer
import org.pocketune.trainer.putTensors
import org.pocketune.trainer.tensors

/** What a training answers. [kept] is for the next round of the same run: the optimizer's slots, and what is personal. */
internal class Trained(val arrays: Map<String, Tensor>, val figures: Map<String, Number>, val kept: Map<String, ByteBuffer>)

/**
 * A client's part in a round: a program in a trainer of its own, which never touches the state that the app's own trainer
 * keeps. [shared] is what the app may [adopt]. Whatever a server sends, the worst that comes of it is a round that ends with
 * a sentence.
 */
class Participant private constructor(
    private val trainer: Trainer,
    private val directory: File,
    private val bounds: Bounds,
    internal val exchange: Exchange,
    private var built: Map<String, ByteBuffer>,
    /** The whole model as it was last trained here, a state file, where something is [personal]. */
    val own: File,
) : AutoCloseable {
    private val alone = Mutex()

    /** What a server's config must name as `program`. */
    val identity: String get() = exchange.identity

    /** Bytes of numbers that leave the device in a round. */
    val bytes: Long get() = exchange.bytes(withSlots = false)

    /** The trained tensors that stay on the device, by the model's names. */
    val personal: Set<String> get() = exchange.personal.keys

    /**
     * The arrays of the server as they came last, and what is [personal] as it was here: a state file that any trainer of the
     * program restores.
     */
    val shared: File = File(directory, "shared.state")

    /** The head of a message that was taken and is not answered yet. */
    internal val unanswered: File = File(directory, "unanswered")

    /** Trains on the user's rows from the server's arrays on. Throws [RefusedRoundException] and [PocketuneException]. */
    internal suspend fun train(
        arrays: Map<String, Tensor>,
        config: Map<String, Any>,
        samples: List<Sample>,
        kept: Map<String, ByteBuffer>,
    ): Trained = alone.withLock {
        val plan = plan(config)
        val taken = exchange.taken(arrays)
        val mine = personalOf(built + kept)
        keepShared(mine + taken)
        trainer.putTensors(built + kept + exchange.begun(taken, plan.proximalMu, mine))
        val begun = System.nanoTime()
        val loss = fit(samples, plan)
        val state = trainer.tensors()
        val all = exchange.sent(state, exchange.asksSlots(arrays.keys))
        val sent = plan.clippingNorm?.let { clipped(all, arrays, it) } ?: all
        keepOwn(state)
        Trained(
            arrays.keys.associateWith { sent.getValue(it) },
            mapOf("num-examples" to counted(samples), "loss" to loss, "seconds" to secondsSince(begun)),
            state.filterKeys { it in exchange.kept },
        )
    }

    /** How good the server's arrays are on some rows. Throws as [train]. */
    internal suspend fun evaluate(
        arrays: Map<String, Tensor>,
        config: Map<String, Any>,
        samples: List<Sample>,
        kept: Map<String, ByteBuffer>,
    ): Map<String, Number> = alone.withLock {
        plan(config)
        keepShared(personalOf(built + kept) + exchange.taken(arrays))
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

    /** The mean loss of the last epoch, while it trains, by the rows of each step. */
    private suspend fun fit(samples: List<Sample>, plan: RoundPlan): Double {
        val first = (plan.round - 1) * plan.epochs
        val how = Plan(
            plan.epochs, plan.learningRate?.let(LearningRate::Constant),
            seed = plan.seed, checkpointEvery = 0, firstEpoch = first, steps = plan.steps,
        )
        var epoch = -1
        val losses = mutableListOf<TrainEvent.Step>()
        trainer.fit(samples, how).collect { event ->
            if (event is TrainEvent.Diverged) throw DivergedException(event.why)
            if (event is TrainEvent.Step) {
                if (event.epoch != epoch) losses.clear()
                epoch = event.epoch
                losses += event
            }
        }
        return losses.sumOf { it.loss * it.weight } / losses.sumOf { it.weight }
    }

    private suspend fun keepShared(tensors: Map<String, ByteBuffer>) {
        trainer.putTensors(built + tensors)
        try {
            trainer.export(shared)
        } catch (_: StateException) {
            // Of another program, as before an update of the app, or damaged: it is of no round that is to come.
            listOf("", ".previous").forEach { File(shared.path + it).delete() }
            trainer.export(shared)
        }
    }

    /** Keeps what was trained here, where something of it is personal; the next round, or the next client, begins with that. */
    private suspend fun keepOwn(state: Map<String, ByteBuffer>) {
        if (personal.isEmpty()) return
        trainer.export(own)
        built = built + personalOf(state)
    }

    private fun personalOf(state: Map<String, ByteBuffer>): Map<String, ByteBuffer> =
        exchange.atHome.associateWith(state::getValue)

    private fun plan(config: Map<String, Any>): RoundPlan {
        val asked = config["program"]
        if (asked !in exchange.accepted) {
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
         * @param personal patterns of trained tensors that stay on the device (FedPer); the server needs the same. They are never sent, and
         *   nothing that a server sends overwrites them.
         * @param own a state file of the whole model as it was last trained here, from which what is personal begins, and which is
         *   kept where something is; it may be one that the app exported. Made where it is not there.
         * @throws PocketuneException the program is none that several can train, the runtime does not take it, a pattern matches
         *   nothing or all match everything, or [own] is of another program.
         */
        suspend fun open(
            program: Program,
            runtime: RuntimeFactory,
            directory: File,
            bounds: Bounds = Bounds(),
            personal: List<String> = emptyList(),
            own: File = File(directory, "own.state"),
        ): Participant {
            val exchange = Exchange(program, bounds.norm, personal)
            val rounds = File(directory, "round")
            rounds.deleteRecursively()
            val trainer = Trainer.open(program, runtime, Store(rounds))
            try {
                val built = trainer.tensors()
                val participant = Participant(trainer, directory, bounds, exchange, built, own)
                if (personal.isNotEmpty()) participant.built = built + participant.personalOf(trainer.restored(own))
                return participant
            } catch (error: Throwable) {
                trainer.close()
                throw error
            }
        }

        /** The tensors in a state file; those in memory where there is none. */
        private suspend fun Trainer.restored(file: File): Map<String, ByteBuffer> {
            try {
                restore(file)
            } catch (_: NoStateException) {
                // Before the first round.
            }
            return tensors()
        }
    }
}
