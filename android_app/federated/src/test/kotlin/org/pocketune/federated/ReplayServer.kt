package org.pocketune.federated

import java.io.File
import okhttp3.mockwebserver.Dispatcher
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okhttp3.mockwebserver.RecordedRequest
import okhttp3.mockwebserver.SocketPolicy
import okio.Buffer
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.Program
import org.pocketune.trainer.Sample

/**
 * A server that answers as a replay, but for [instead].
 *
 * @property asked names of the calls that came.
 * @property said what the client said.
 */
internal class ReplayServer(
    private val replay: Replay,
    private val instead: (String, RecordedRequest) -> MockResponse? = { _, _ -> null },
) : AutoCloseable {
    val asked = mutableListOf<String>()
    val said = mutableListOf<String>()
    private val server = MockWebServer().apply {
        dispatcher = object : Dispatcher() {
            override fun dispatch(request: RecordedRequest): MockResponse = synchronized(asked) {
                val name = request.path!!.substringAfterLast('/')
                asked += name
                instead(name, request) ?: MockResponse().setBody(Buffer().write(replay.changed(name, request.body.readByteArray())))
            }
        }
    }

    /** What a client does there whose rows are these. */
    suspend fun serve(participant: Participant, rows: List<Sample> = Recorded.rows, patienceMillis: Long = 300_000, idleMillis: Long = 1000): Served {
        val link = SuperLink("http://127.0.0.1:${server.port}", patienceMillis = patienceMillis)
        return FederatedClient(participant, link, testKey, pollMillis = 20, say = said::add).serve(idleMillis) { Rows(rows) }
    }

    override fun close() = server.shutdown()
}

/** Refuses calls, each once. */
internal fun refusing(vararg refusals: Pair<String, Int>): (String, RecordedRequest) -> MockResponse? {
    val left = refusals.toMutableList()
    return { name, _ -> left.firstOrNull { it.first == name }?.let { left -= it; MockResponse().setResponseCode(it.second) } }
}

/** The connection ends when the request is there. */
internal fun gone(): MockResponse = MockResponse().setSocketPolicy(SocketPolicy.DISCONNECT_AFTER_REQUEST)

/** A participant with the recorded program. */
internal suspend fun recordedParticipant(folder: File): Participant {
    loadAndroid()
    return Participant.open(Program.open(File(Recorded.folder, "program.tflite")), TfliteRuntimeFactory(), folder)
}
