package org.pocketune.federated

import java.io.File
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlin.test.assertNotNull
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.RecordedRequest
import okhttp3.mockwebserver.SocketPolicy
import okio.Buffer
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.federated.wire.Metadata
import org.pocketune.federated.wire.PullMessagesResponse
import org.pocketune.federated.wire.PushObjectResponse

/** Servers that go away in any call, and messages that are late, doubled, foreign, in another order, or very large. */
class FaultsTest {
    @TempDir lateinit var folder: File

    /** What a round calls; a sign of life comes later. */
    private val calls = listOf("activate-node", "pull-messages", "pull-object", "confirm-message-received", "push-messages", "push-object")

    @Test
    fun `a server that is gone for a moment in every call is asked again, and the rounds go on`(): Unit = runBlocking {
        val left = calls.toMutableList()
        recordedParticipant(folder).use { participant ->
            ReplayServer(Replay(), { name, _ -> if (left.remove(name)) gone() else null }).use {
                val served = it.serve(participant)
                assertEquals(2 to emptyList(), served.messages to served.errors)
            }
        }
        assertEquals(emptyList(), left)
    }

    @Test
    fun `a server that is gone for good in a call ends the client with a sentence, and what was taken is left later`(): Unit = runBlocking {
        recordedParticipant(folder).use { participant ->
            for (call in calls) {
                ReplayServer(Replay(), { name, _ -> if (name == call) gone() else null }).use {
                    val error = assertFailsWith<LostServerException>(call) { it.serve(participant, patienceMillis = 0) }
                    assertContains(error.message.orEmpty(), "no SuperLink answers at http")
                }
                val isTaken = call != "activate-node" && call != "pull-messages"
                assertEquals(isTaken, participant.unanswered.exists(), call)
                ReplayServer(Replay()).use {
                    val left = if (isTaken) listOf("left a message that was not answered when this client ended") else emptyList()
                    assertEquals(left, it.serve(participant).errors, call)
                }
            }
        }
    }

    @Test
    fun `a server that is gone when the client says that it is there, or leaves, is no error`(): Unit = runBlocking {
        recordedParticipant(folder).use { participant ->
            ReplayServer(Replay(), { name, _ -> if (name == "deactivate-node") gone() else null }).use {
                assertEquals(2, it.serve(participant, patienceMillis = 0).messages)
            }
        }
        val fleet = Fleet(testKey, 1, { 0.0 }, { _, _ -> throw LostServerException("it is gone") })
        fleet.beat()
        fleet.leave()
    }

    @Test
    fun `an answer that comes late ends in a sentence, and the next message is answered`(): Unit = runBlocking {
        recordedParticipant(folder).use { participant ->
            suspend fun late(said: String, replay: Replay = Replay(), vararg refusals: Pair<String, Int>) =
                ReplayServer(replay, refusing(*refusals)).use {
                    val served = it.serve(participant)
                    assertEquals(1 to 1, served.messages to served.errors.size, said)
                    assertContains(served.errors.single(), said)
                    assertFalse(participant.unanswered.exists())
                }
            late("push-messages: the server answers HTTP 412", refusals = arrayOf("push-messages" to 412))
            late("push-object: the server answers HTTP 403", refusals = arrayOf("push-object" to 403))
            var isOver = false
            val over = Replay { name, answer ->
                if (name != "push-object" || isOver) answer
                else PushObjectResponse.getDefaultInstance().toByteArray().also { isOver = true }
            }
            late("does not take the answer: the session of its upload is over", over)
            val empty = Replay { name, answer -> if (name == "pull-object") ByteArray(0) else answer }
            ReplayServer(empty).use { assertContains(it.serve(participant).errors.first(), "of the server is not there") }
            assertEquals(emptyList(), empty.pushed)
        }
    }

    @Test
    fun `a message that comes twice is done once`(): Unit = runBlocking {
        val (first, second) = Recorded.pulls()
        val replay = Replay(pulls = listOf(first, first, second, first, second))
        recordedParticipant(folder).use { participant ->
            ReplayServer(replay).use {
                val served = it.serve(participant)
                assertEquals(2, served.messages)
                assertEquals(List(3) { "the server sent a message again that was answered: it is left out" }, served.errors)
            }
            assertFalse(participant.unanswered.exists())
        }
        assertEquals(2, replay.pushed.size)
    }

    @Test
    fun `a message of another node, or that is not its envelope's, is not done`(): Unit = runBlocking {
        recordedParticipant(folder).use { participant ->
            val foreign = headed { dstNodeId = 5 }
            ReplayServer(foreign).use {
                val served = it.serve(participant)
                assertEquals(0 to List(2) { "the server's message is for another node" }, served.messages to served.errors)
            }
            assertEquals(emptyList(), foreign.pushed, "nobody would take an answer in that node's name")
            val changes: List<Metadata.Builder.() -> Unit> =
                listOf({ runId = 1 }, { srcNodeId = 3 }, { messageType = "query" }, { replyToMessageId = "x" }, { groupId = "2" })
            for (change in changes) {
                val replay = headed(change)
                val said = "the server's message is not what its envelope says"
                ReplayServer(replay).use { assertEquals(listOf(said, said), it.serve(participant).errors) }
                assertEquals(said, replay.pushed.first().error.reason)
            }
        }
    }

    @Test
    fun `messages in another order are answered as in their own`(): Unit = runBlocking {
        val (straight, reversed) = Replay() to Replay(pulls = Recorded.pulls().reversed())
        recordedParticipant(folder).use { participant ->
            for (replay in listOf(straight, reversed)) ReplayServer(replay).use { assertEquals(emptyList(), it.serve(participant).errors) }
        }
        assertEquals(listOf("evaluate", "train"), reversed.pushed.map { it.metadata.messageType })
        for ((name, array) in arraysIn(straight)) assertEquals(array.numbers.toList(), arraysIn(reversed).getValue(name).numbers.toList())
    }

    /** The JVM of these tests has 256 MB. */
    @Test
    fun `objects of a gigabyte end the round, and no memory is taken for them`(): Unit = runBlocking {
        recordedParticipant(folder).use { participant ->
            // An object of 2 ** 30 bytes, cut short.
            val claims = byteArrayOf(0x08, 1, 0x10, 1, 0x1a, -128, -128, -128, -128, 4)
            val replay = Replay { name, answer -> if (name == "pull-object") claims else answer }
            ReplayServer(replay).use { assertContains(it.serve(participant).errors.first(), "does not answer as a SuperLink does") }
            // The server says that it has a gigabyte; of eight megabytes that come one or two are read.
            val large = MockResponse().setBody(Buffer().write(ByteArray(8 shl 20))).setHeader("content-length", 1L shl 30)
                .setSocketPolicy(SocketPolicy.DISCONNECT_AT_END)
            ReplayServer(Replay(), { name, _ -> if (name == "pull-object") large else null }).use {
                assertContains(it.serve(participant).errors.first(), "an answer of the server is larger than")
            }
        }
        val chunk = Outgoing("ArrayChunk", ByteArray(1 shl 20))
        val head = """{"dtype": "float32", "shape": [${1 shl 28}], "stype": "numpy.ndarray", "arraychunk_ids": [${List(1024) { 0 }.joinToString()}]}"""
        val array = Outgoing("Array", head.toByteArray(), listOf(chunk))
        val record = Outgoing("ArrayRecord", """{"w": "${array.id}"}""".toByteArray(), listOf(array))
        val dict = Outgoing("RecordDict", """{"arrays": "${record.id}"}""".toByteArray(), listOf(record))
        val bomb = Outgoing("Message", ByteArray(0), listOf(dict))
        val error = assertFailsWith<RefusedRoundException> { Incoming(bomb.all().associate { it.id to it.content }, 4L shl 20).message(bomb.id) }
        assertContains(error.message.orEmpty(), "its arrays are larger than 4194304 bytes")
    }

    @Test
    fun `a tree of a thousand levels is not read`(): Unit = runBlocking {
        recordedParticipant(folder).use { participant ->
            // By hand: protobuf does not write what it would not read.
            var tree = ByteArray(0)
            repeat(1000) { tree = Buffer().field(1, "0".repeat(64).toByteArray()).apply { if (tree.isNotEmpty()) field(2, tree) }.readByteArray() }
            val deep = Replay { name, answer ->
                if (name != "pull-messages" || answer.isEmpty()) answer
                else {
                    val head = PullMessagesResponse.parseFrom(answer).getMessagesList(0).toByteArray()
                    val numbers = listOf(PullMessagesResponse.MESSAGES_LIST_FIELD_NUMBER, PullMessagesResponse.MESSAGE_OBJECT_TREES_FIELD_NUMBER)
                    Buffer().field(numbers[0], head).field(numbers[1], tree).readByteArray()
                }
            }
            ReplayServer(deep).use {
                val errors = it.serve(participant).errors
                assertEquals(2, errors.size)
                assertContains(errors.first(), "does not answer as a SuperLink does")
            }
        }
    }

    @Test
    fun `a key that the server takes no longer ends the client with a sentence`(): Unit = runBlocking {
        recordedParticipant(folder).use { participant ->
            ReplayServer(Replay(), refusing("pull-messages" to 401, "send-node-heartbeat" to 401, "activate-node" to 401)).use {
                val error = assertFailsWith<LostServerException> { it.serve(participant) }
                assertContains(error.message.orEmpty(), "does not take this client's signature")
            }
        }
    }

    @Test
    fun `no signature is sent twice but where a connection broke, and then the call is signed again`(): Unit = runBlocking {
        val (seen, left) = mutableSetOf<String>() to mutableListOf("pull-object", "push-object")
        val instead = { name: String, request: RecordedRequest ->
            val isNew = seen.add(assertNotNull(request.getHeader("flwr-signature")))
            when {
                // As a leaf, which takes each once.
                !isNew -> MockResponse().setResponseCode(401).addHeader("date", "Sun, 29 Nov 2026 20:00:00 GMT")
                left.remove(name) -> gone()
                else -> null
            }
        }
        recordedParticipant(folder).use { participant ->
            ReplayServer(Replay(), instead).use {
                val served = it.serve(participant)
                assertEquals(2 to emptyList(), served.messages to served.errors)
            }
        }
        assertTrue(seen.size > 20)
    }

    /** A replay whose pulls have another head. */
    private fun headed(change: Metadata.Builder.() -> Unit) = Replay { name, answer ->
        val pulled = if (name == "pull-messages") PullMessagesResponse.parseFrom(answer) else PullMessagesResponse.getDefaultInstance()
        if (pulled.messagesListCount == 0) return@Replay answer
        val head = pulled.getMessagesList(0).let { it.toBuilder().setMetadata(it.metadata.toBuilder().apply(change)) }
        pulled.toBuilder().setMessagesList(0, head).build().toByteArray()
    }

    /** The trained arrays that a replay was answered. */
    private fun arraysIn(replay: Replay): Map<String, Tensor> {
        val reply = replay.pushed.first { it.metadata.messageType == "train" }
        return Incoming(replay.objects, 1L shl 20).message(reply.metadata.messageId).second.arrays.getValue("arrays")
    }

    /** A field of bytes of a message. */
    private fun Buffer.field(number: Int, bytes: ByteArray): Buffer = apply {
        writeByte(number shl 3 or 2)
        var left = bytes.size
        while (left > 127) {
            writeByte(left and 127 or 128)
            left = left ushr 7
        }
        writeByte(left).write(bytes)
    }
}
