package org.pocketune.federated

import java.io.File
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertFalse
import kotlinx.coroutines.runBlocking
import okhttp3.mockwebserver.Dispatcher
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okhttp3.mockwebserver.RecordedRequest
import okio.Buffer
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.Program

/** A client at a server that replays the recorded round: killed processes, and servers that begin anew. */
class ClientTest {
    @TempDir lateinit var folder: File
    private val server = MockWebServer()
    private val replay = Replay()
    private val asked = mutableListOf<String>()

    private val said = mutableListOf<String>()

    /** Codes other than 200, by call, each once. */
    private val refusals = mutableListOf<Pair<String, Int>>()

    @AfterEach
    fun end() = server.shutdown()

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
            refusals += "pull-messages" to 401
            refusals += "send-node-heartbeat" to 401
            val served = serve(participant)
            assertContains(served.errors.first(), "does not take this client's signature")
            assertEquals(2, asked.count { it == "activate-node" })
            assertEquals(2, replay.pushed.size, "it answers what comes then")
        }
    }

    @Test
    fun `a key that the server takes for one that is there is tried again`(): Unit = runBlocking {
        participant().use { participant ->
            refusals += listOf("activate-node" to 412, "register-node" to 412, "activate-node" to 412)
            val served = serve(participant)
            assertContains(said.first(), "yet: if the app was killed")
            assertEquals(listOf("activate-node", "register-node", "activate-node", "activate-node"), asked.take(4))
            assertEquals(2, served.errors.size, "each message is answered with an error, for want of rows")
        }
    }

    @Test
    fun `a key that the server never takes ends the client with a sentence`(): Unit = runBlocking {
        participant().use { participant ->
            repeat(99) { refusals += "activate-node" to 412 }
            val error = assertFailsWith<LostServerException> { serve(participant, patienceMillis = 1200) }
            assertContains(error.message.orEmpty(), "does not take this client's key: activate-node: the server answers HTTP 412")
        }
    }

    private suspend fun serve(participant: Participant, patienceMillis: Long = 300_000): Served {
        server.dispatcher = object : Dispatcher() {
            override fun dispatch(request: RecordedRequest): MockResponse {
                val name = request.path!!.substringAfterLast('/')
                asked += name
                refusals.firstOrNull { it.first == name }?.let {
                    refusals -= it
                    return MockResponse().setResponseCode(it.second)
                }
                return MockResponse().setBody(Buffer().write(replay.answer(name, request.body.readByteArray())))
            }
        }
        val link = SuperLink("http://127.0.0.1:${server.port}", patienceMillis = patienceMillis)
        // Without rows: each message is answered with an error.
        return FederatedClient(participant, link, testKey, pollMillis = 20, say = said::add).serve(idleMillis = 100) { Rows(emptyList()) }
    }

    private suspend fun participant(): Participant {
        for (name in listOf("c", "m", "dl", "log")) System.load("${System.getProperty("java.library.path")}/lib$name.so")
        return Participant.open(Program.open(File(Recorded.folder, "program.tflite")), TfliteRuntimeFactory(), folder)
    }
}
