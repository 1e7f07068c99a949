package org.pocketune.federated

import java.io.File
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** A client at a server that replays the recorded round: killed processes, and servers that begin anew. */
class ClientTest {
    @TempDir lateinit var folder: File
    private val replay = Replay()

    @Test
    fun `a client that was killed in the midst of a round leaves it when it starts again`(): Unit = runBlocking {
        participant().use { participant ->
            val head = checkNotNull(fleet(Replay()).apply { join() }.pull()).head
            participant.unanswered.writeBytes(head.toByteArray())
            val served = serve(participant)
            assertEquals("left a message that was not answered when this client ended", served.errors.first())
            assertContains(replay.pushed.first().error.reason, "leaves it")
            assertEquals(head.messageId, replay.pushed.first().metadata.replyToMessageId)
            assertFalse(participant.unanswered.exists())
        }
    }

    @Test
    fun `a note that was cut short when the process ended is no harm`(): Unit = runBlocking {
        participant().use { participant ->
            participant.unanswered.writeBytes(byteArrayOf(10, 99, 1))
            assertEquals("train", checkNotNull(serve(participant)).let { replay.pushed.first().metadata.messageType })
            assertFalse(participant.unanswered.exists())
        }
    }

    @Test
    fun `a server that began anew is joined again`(): Unit = runBlocking {
        participant().use { participant ->
            val server = ReplayServer(replay, refusing("pull-messages" to 401, "send-node-heartbeat" to 401))
            val served = serve(participant, server)
            assertContains(served.errors.first(), "does not take this client's signature")
            assertEquals(2, server.asked.count { it == "activate-node" })
            assertEquals(2, replay.pushed.size, "it answers what comes then")
        }
    }

    @Test
    fun `a key that the server takes for one that is there is tried again`(): Unit = runBlocking {
        participant().use { participant ->
            val server = ReplayServer(replay, refusing("activate-node" to 412, "register-node" to 412, "activate-node" to 412))
            val served = serve(participant, server)
            assertContains(server.said.first(), "yet: if the app was killed")
            assertEquals(listOf("activate-node", "register-node", "activate-node", "activate-node"), server.asked.take(4))
            assertEquals(2, served.errors.size, "each message is answered with an error, for want of rows")
        }
    }

    @Test
    fun `a key that the server never takes ends the client with a sentence`(): Unit = runBlocking {
        participant().use { participant ->
            val server = ReplayServer(replay, refusing(*Array(99) { "activate-node" to 412 }))
            val error = assertFailsWith<LostServerException> { serve(participant, server, patienceMillis = 1200) }
            assertContains(error.message.orEmpty(), "does not take this client's key: activate-node: the server answers HTTP 412")
        }
    }

    /** What a client does without rows: each message is answered with an error. */
    private suspend fun serve(participant: Participant, server: ReplayServer = ReplayServer(replay), patienceMillis: Long = 300_000): Served =
        server.use { it.serve(participant, emptyList(), patienceMillis, idleMillis = 100) }

    private suspend fun participant(): Participant = recordedParticipant(folder)
}
