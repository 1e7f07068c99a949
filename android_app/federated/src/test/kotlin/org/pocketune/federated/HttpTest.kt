package org.pocketune.federated

import java.security.KeyFactory
import java.security.Signature
import java.security.spec.X509EncodedKeySpec
import java.util.Date
import java.util.concurrent.TimeUnit
import kotlin.math.abs
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import okhttp3.Headers
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okio.Buffer
import okio.ByteString.Companion.decodeBase64
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Test
import org.pocketune.federated.wire.Node

/** Signed calls, a wrong clock, and servers that do not answer as they should. */
class HttpTest {
    private val server = MockWebServer().apply { start() }
    private val node = Node.newBuilder().setNodeId(-5).build()

    @AfterEach
    fun end() = server.shutdown()

    @Test
    fun `a call is signed by the key that it names`(): Unit = runBlocking {
        server.enqueue(MockResponse().setBody(Buffer().write(byteArrayOf(1, 2))))
        assertContentEquals(byteArrayOf(1, 2), http().call("pull-messages", node))
        val asked = server.takeRequest()
        assertEquals("/v1/fleet/pull-messages", asked.path)
        assertEquals("application/protobuf", asked.getHeader("content-type"))
        assertContentEquals(node.toByteArray(), asked.body.readByteArray())
        val pem = asked.getHeader("flwr-public-key")!!.decodeBase64()!!.utf8()
        assertTrue(pem.startsWith("-----BEGIN PUBLIC KEY-----\n") && pem.endsWith("\n-----END PUBLIC KEY-----\n"))
        val der = pem.lines().filter { "-----" !in it }.joinToString("").decodeBase64()!!.toByteArray()
        val isSigned = Signature.getInstance("SHA256withECDSA").run {
            initVerify(KeyFactory.getInstance("EC").generatePublic(X509EncodedKeySpec(der)))
            update(asked.getHeader("flwr-timestamp")!!.toByteArray())
            verify(asked.getHeader("flwr-signature")!!.decodeBase64()!!.toByteArray())
        }
        assertTrue(isSigned)
        assertTrue(Regex("""\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00""").matches(asked.getHeader("flwr-timestamp")!!))
    }

    @Test
    fun `a clock that is a day behind is set right`() = clock(days = 1)

    @Test
    fun `a clock that is a day ahead is set right`() = clock(days = -1)

    private fun clock(days: Long): Unit = runBlocking {
        val theirs = Date(System.currentTimeMillis() + TimeUnit.DAYS.toMillis(days))
        val refused = MockResponse().setResponseCode(401).addHeader("date", Headers.Builder().set("date", theirs).build()["date"]!!)
        server.enqueue(refused)
        server.enqueue(MockResponse())
        server.enqueue(MockResponse())
        val http = http()
        http.call("pull-messages", node)
        assertTrue(abs(http.now() - theirs.time / 1000.0) < 5)
        http.call("pull-messages", node)
        assertEquals(3, server.requestCount)
        server.enqueue(refused)
        server.enqueue(MockResponse().setResponseCode(401))
        assertFailsWith<UnknownNodeException> { http.call("pull-messages", node) }
    }

    @Test
    fun `a server that is busy is asked again, and one that is gone is given up`(): Unit = runBlocking {
        server.enqueue(MockResponse().setResponseCode(503))
        server.enqueue(MockResponse())
        http().call("pull-messages", node)
        assertEquals(2, server.requestCount)
        server.enqueue(MockResponse().setResponseCode(412).setBody("x".repeat(9000)))
        assertTrue(assertFailsWith<EndedRoundException> { http().call("push-messages", node) }.message!!.length < 400)
        val gone = SuperLink("http://127.0.0.1:9", patienceMillis = 100)
        assertFailsWith<LostServerException> { Http(gone, testKey, 1000).call("pull-messages", node) }
    }

    @Test
    fun `an answer is read no further than it may be long`(): Unit = runBlocking {
        server.enqueue(MockResponse().setBody(Buffer().write(ByteArray(1000))))
        assertEquals(1000, http().call("pull-object", node).size)
        server.enqueue(MockResponse().setChunkedBody(Buffer().write(ByteArray(3_000_000)), 8192))
        assertFailsWith<RefusedRoundException> { http().call("pull-object", node) }
        // Nobody asks for what is compressed, and nothing is unpacked.
        server.enqueue(MockResponse().setHeader("content-encoding", "gzip").setBody("no gzip"))
        assertEquals("no gzip", http().call("pull-object", node).toString(Charsets.UTF_8))
    }

    @Test
    fun `another machine is not spoken to without TLS`() {
        assertFailsWith<IllegalArgumentException> { SuperLink("http://fleet.example.org") }
        assertFailsWith<IllegalArgumentException> { SuperLink("fleet") }
        SuperLink("https://fleet.example.org")
        SuperLink("http://10.0.0.7:8000", insecure = true)
    }

    private fun http() = Http(SuperLink("http://127.0.0.1:${server.port}", patienceMillis = 5000), testKey, 1000)
}
