package org.pocketune.federated

import com.google.protobuf.MessageLite
import java.io.IOException
import java.text.SimpleDateFormat
import java.util.Date
import java.util.Locale
import java.util.TimeZone
import java.util.concurrent.TimeUnit
import kotlin.random.Random
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.delay
import kotlinx.coroutines.runInterruptible
import okhttp3.HttpUrl.Companion.toHttpUrlOrNull
import okhttp3.MediaType.Companion.toMediaType
import okhttp3.OkHttpClient
import okhttp3.Request
import okhttp3.RequestBody.Companion.toRequestBody
import okhttp3.Response
import okio.ByteString.Companion.toByteString

/**
 * Where a server is.
 *
 * @property address `https://HOST:PORT`, or `http://127.0.0.1:PORT`.
 * @property insecure without TLS also on another machine: whoever is between reads what travels.
 * @property http a client with the app's own certificates or pins (`CertificatePinner`).
 * @property patienceMillis how long a server that does not answer is waited for.
 */
class SuperLink(
    val address: String,
    val insecure: Boolean = false,
    val http: OkHttpClient = OkHttpClient(),
    val patienceMillis: Long = 300_000,
) {
    internal val url = requireNotNull(address.toHttpUrlOrNull()) { "$address is no address: https://HOST:PORT" }

    init {
        require(url.isHttps || insecure || url.host in LOOPBACK) { "$address has no TLS: use https, or insecure = true" }
    }

    private companion object {
        val LOOPBACK = setOf("localhost", "127.0.0.1", "::1")
    }
}

/**
 * Signed calls, with a bound on what an answer may hold; it is read no further than that, and nothing is unpacked.
 *
 * @param most bytes of an answer.
 */
internal class Http(private val link: SuperLink, private val key: NodeKey, private val most: Long) {
    private val http = link.http.newBuilder().readTimeout(READ_SECONDS, TimeUnit.SECONDS).followRedirects(false).build()

    /** What the server's clock shows more than this one, in milliseconds. */
    @Volatile private var ahead = 0L

    /** Seconds since 1970 by the server's clock. */
    fun now(): Double = (System.currentTimeMillis() + ahead) / MILLIS

    /**
     * The answer to a request, tried again with longer and longer waits.
     *
     * @throws EndedRoundException the server does not do it.
     * @throws UnknownNodeException it does not take the signature.
     * @throws LostServerException there is none.
     * @throws RefusedRoundException the answer is too large.
     */
    suspend fun call(name: String, request: MessageLite): ByteArray {
        val end = System.nanoTime() + link.patienceMillis * NANOS
        var wait = FIRST
        while (true) {
            val reason = try {
                val answer = once(name, request)
                if (answer.code !in BUSY) return answer.bytes(name)
                "HTTP ${answer.code}"
            } catch (error: IOException) {
                error.message ?: error.toString()
            }
            val left = (end - System.nanoTime()) / NANOS
            if (left <= 0) throw LostServerException("no SuperLink answers at ${link.address}: $reason")
            delay(minOf((wait * Random.nextDouble(0.8, 1.2)).toLong(), left))
            wait = minOf(2 * wait, LONGEST)
        }
    }

    private fun Answer.bytes(name: String): ByteArray = when (code) {
        OK -> body
        UNAUTHORIZED -> throw UnknownNodeException(
            "${link.address} does not take this client's signature: have the server's operator register its key",
        )
        else -> throw EndedRoundException("$name: the server answers HTTP $code: ${body.toString(Charsets.UTF_8).take(SAID)}")
    }

    /** One try; a second one where the clocks differ. */
    private suspend fun once(name: String, request: MessageLite): Answer {
        val first = send(name, request)
        val date = first.date ?: return first
        if (first.code != UNAUTHORIZED) return first
        ahead = date.time - System.currentTimeMillis()
        return send(name, request)
    }

    private suspend fun send(name: String, request: MessageLite): Answer {
        val time = iso(System.currentTimeMillis() + ahead)
        val call = Request.Builder().url(link.url.newBuilder().encodedPath("/v1/fleet/$name").build())
            .header("accept", TYPE).header("accept-encoding", "identity")
            .header("flwr-public-key", key.publicPem.toByteString().base64())
            .header("flwr-timestamp", time)
            .header("flwr-signature", key.sign(time.toByteArray(Charsets.US_ASCII)).toByteString().base64())
            .post(request.toByteArray().toRequestBody(TYPE.toMediaType())).build()
        return runInterruptible(Dispatchers.IO) { http.newCall(call).execute().use(::read) }
    }

    private fun read(response: Response): Answer {
        val source = response.body.source()
        val bound = if (response.code == OK) most else ERROR
        val isLarger = source.request(bound + 1)
        if (isLarger && response.code == OK) throw RefusedRoundException("an answer of the server is larger than $bound bytes")
        val body = if (isLarger) source.readByteArray(bound) else source.readByteArray()
        return Answer(response.code, body, response.headers.getDate("date"))
    }

    private class Answer(val code: Int, val body: ByteArray, val date: Date?)

    private companion object {
        const val TYPE = "application/protobuf"
        const val READ_SECONDS = 60L
        const val OK = 200
        const val UNAUTHORIZED = 401
        val BUSY = setOf(502, 503, 504)
        const val ERROR = 4096L
        const val SAID = 300
        const val FIRST = 1000.0
        const val LONGEST = 30_000.0
        const val MILLIS = 1000.0
        const val NANOS = 1_000_000L

        fun iso(millis: Long): String =
            SimpleDateFormat("yyyy-MM-dd'T'HH:mm:ss.SSS'000+00:00'", Locale.ROOT)
                .apply { timeZone = TimeZone.getTimeZone("UTC") }.format(Date(millis))
    }
}
