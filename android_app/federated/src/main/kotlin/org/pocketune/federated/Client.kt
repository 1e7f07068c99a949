package org.pocketune.federated

import kotlin.random.Random
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.NonCancellable
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import kotlinx.coroutines.withTimeoutOrNull
import com.google.protobuf.InvalidProtocolBufferException
import java.nio.ByteBuffer
import org.pocketune.federated.wire.Metadata
import org.pocketune.trainer.PocketuneException
import org.pocketune.trainer.Sample

/** The user's rows, and those to judge by. */
class Rows(val samples: List<Sample>, val heldOut: List<Sample> = samples)

/** What a client did: [messages] that it answered with numbers, why it did not answer others, and [bytes] that left the device. */
data class Served(val messages: Int = 0, val errors: List<String> = emptyList(), val bytes: Long = 0)

/**
 * A client of an unmodified Flower SuperLink 1.42. The server's Python app is never fetched: what runs is the program, whatever
 * the server sends.
 *
 * @param key kept by the app; the client registers it where it is new to the server.
 * @param pollMillis between two questions whether there is work, give or take a fifth: minutes for many phones.
 * @param say is told of each round in a sentence.
 */
class FederatedClient(
    private val participant: Participant,
    link: SuperLink,
    key: NodeKey,
    private val pollMillis: Long = 3000,
    private val say: (String) -> Unit = {},
) {
    private val most = BESIDE + TIMES * participant.exchange.bytes(withSlots = true)
    private val http = Http(link, key, most)
    private val fleet = Fleet(key, most, http::now, http::call, minOf(link.patienceMillis, HELD)) {
        participant.unanswered.writeBytes(it.toByteArray())
    }

    /** What stays here from round to round, by run: [Trained.kept]. */
    private val kept = LinkedHashMap<Long, Map<String, ByteBuffer>>()
    private var served = Served()

    /** Ids of messages that were answered with numbers: training twice would move what stays here twice. */
    private val answered = LinkedHashSet<String>()

    /** When there was last something to do, by the clock of `System.nanoTime`. */
    private var busy = 0L

    /**
     * Takes part in the rounds of the server, until there was no work for [idleMillis] or the caller is cancelled. A round that
     * is cancelled is left: the server goes on with the others.
     *
     * @param rows of a message, read anew for each.
     * @throws LostServerException there is no server, or it does not take this client.
     */
    suspend fun serve(idleMillis: Long? = null, rows: suspend () -> Rows): Served = coroutineScope {
        served = Served()
        fleet.join(say)
        leave()
        val beats = launch {
            while (true) {
                delay((BEAT_SECONDS * 1000 * Random.nextDouble(0.6, 0.8)).toLong())
                fleet.beat()
            }
        }
        try {
            rounds(idleMillis, rows)
        } finally {
            beats.cancel()
            withContext(NonCancellable) { withTimeoutOrNull(LEAVE) { fleet.leave() } }
        }
        served
    }

    private suspend fun rounds(idleMillis: Long?, rows: suspend () -> Rows) {
        busy = System.nanoTime()
        while (true) {
            val asked = pulled()
            if (asked == null) {
                if (idleMillis != null && (System.nanoTime() - busy) / NANOS >= idleMillis) return
                delay((pollMillis * Random.nextDouble(0.8, 1.2)).toLong())
                continue
            }
            try {
                answer(asked, rows())
            } catch (error: UnknownNodeException) {
                // As of a server that began anew: it is joined again when it is asked next.
                note(error.message.orEmpty())
            } catch (error: RefusedRoundException) {
                note(error.message.orEmpty())
            } catch (error: EndedRoundException) {
                note(error.message.orEmpty())
            }
            participant.unanswered.delete()
            busy = System.nanoTime()
        }
    }

    /**
     * A message that was taken when the process was killed, or cancelled, is answered with an error: the server has others do
     * it, and does not wait for this node, which is there again.
     */
    private suspend fun leave() {
        if (!participant.unanswered.exists()) return
        val head = try {
            Metadata.parseFrom(participant.unanswered.readBytes())
        } catch (_: InvalidProtocolBufferException) {
            // Cut short when the process ended.
            null
        }
        try {
            head?.let { fleet.refuse(it, "the client ended in the midst of this, and leaves it") }
            note("left a message that was not answered when this client ended")
        } catch (error: FederatedException) {
            if (error is LostServerException && error !is UnknownNodeException) throw error
            // The run is over.
        }
        participant.unanswered.delete()
    }

    private suspend fun pulled(): Asked? = try {
        fleet.pull()?.takeIf { asked ->
            val isNew = asked.head.messageId !in answered
            if (!isNew) {
                note("the server sent a message again that was answered: it is left out")
                participant.unanswered.delete()
            }
            isNew
        }
    } catch (error: UnknownNodeException) {
        note(error.message.orEmpty())
        fleet.joinAgain(say)
        busy = System.nanoTime()
        null
    } catch (error: FederatedException) {
        if (error is LostServerException) throw error
        note(error.message.orEmpty())
        participant.unanswered.delete()
        null
    }

    private suspend fun answer(asked: Asked, rows: Rows) {
        val begun = System.nanoTime()
        val records = try {
            records(asked, rows)
        } catch (error: CancellationException) {
            throw error
        } catch (error: Exception) {
            // Whatever is wrong with the message, the rows or the runtime: the server goes on with the others.
            val why = error.message?.takeIf { error is FederatedException || error is PocketuneException } ?: error.toString()
            fleet.refuse(asked.head, why)
            note("answered with an error: $why")
            return
        }
        val sent = fleet.reply(asked.head, records, (System.nanoTime() - begun) / NANOS / 1000.0)
        served = served.copy(messages = served.messages + 1, bytes = served.bytes + sent)
        answered += asked.head.messageId
        while (answered.size > ANSWERED) answered.remove(answered.first())
        say("${asked.head.messageType}: $sent bytes left this device")
    }

    private suspend fun records(asked: Asked, rows: Rows): Outgoing {
        val kind = asked.head.messageType
        if (kind == "query") {
            return Outgoing.records(null, mapOf("config" to Outgoing.config(configOf(participant.describe(rows.samples)))))
        }
        val (arrays, configs) = asked.records.arrays.values to asked.records.configs.values
        if (arrays.size != 1 || configs.size != 1) {
            throw RefusedRoundException(
                "the server sent ${arrays.size} records of arrays and ${configs.size} records of config, and one of each is expected",
            )
        }
        return when (kind) {
            "train" -> {
                val run = asked.head.runId
                val trained = participant.train(arrays.single(), configs.single(), rows.samples, kept[run].orEmpty())
                kept.remove(run)
                kept[run] = trained.kept
                // The server names the runs.
                while (kept.size > RUNS) kept.remove(kept.keys.first())
                Outgoing.records(trained.arrays, mapOf("metrics" to Outgoing.metrics(metricsOf(trained.figures))))
            }
            "evaluate" -> {
                val figures = participant.evaluate(arrays.single(), configs.single(), rows.heldOut, kept[asked.head.runId].orEmpty())
                Outgoing.records(null, mapOf("metrics" to Outgoing.metrics(metricsOf(figures))))
            }
            else -> throw RefusedRoundException("the server asks for '$kind', which this client does not do")
        }
    }

    private fun note(why: String) {
        served = served.copy(errors = served.errors + why)
        say(why)
    }

    private companion object {
        /** Bytes of a message beside its arrays, and what the arrays may have in it. */
        const val BESIDE = 1L shl 20
        const val TIMES = 4L
        const val RUNS = 8

        /** Messages that are known again. */
        const val ANSWERED = 64
        const val LEAVE = 5000L
        const val NANOS = 1_000_000L
    }
}
