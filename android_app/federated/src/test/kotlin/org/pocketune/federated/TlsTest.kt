package org.pocketune.federated

import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlinx.coroutines.runBlocking
import okhttp3.CertificatePinner
import okhttp3.OkHttpClient
import okhttp3.mockwebserver.MockResponse
import okhttp3.mockwebserver.MockWebServer
import okhttp3.tls.HandshakeCertificates
import okhttp3.tls.HeldCertificate
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Test
import org.pocketune.federated.wire.Node

/** TLS with the app's own certificates and pins. */
class TlsTest {
    private val certificate = HeldCertificate.Builder().addSubjectAlternativeName("localhost").build()
    private val other = HeldCertificate.Builder().addSubjectAlternativeName("localhost").build()
    private val server = MockWebServer().apply {
        useHttps(HandshakeCertificates.Builder().heldCertificate(certificate).build().sslSocketFactory(), false)
        start()
    }

    @AfterEach
    fun end() = server.shutdown()

    @Test
    fun `a server whose certificate is trusted and pinned is spoken to`(): Unit = runBlocking {
        server.enqueue(MockResponse())
        assertEquals(0, call(trusts(certificate), pinned = certificate).size)
    }

    @Test
    fun `another certificate or pin ends the call before anything is sent`() {
        for ((http, pinned) in listOf(trusts(other) to null, trusts(certificate) to other, OkHttpClient() to null)) {
            val error = assertFailsWith<LostServerException> { runBlocking { call(http, pinned) } }
            assertContains(error.message!!, "no SuperLink answers")
        }
        assertEquals(0, server.requestCount)
    }

    private fun trusts(one: HeldCertificate): OkHttpClient {
        val certificates = HandshakeCertificates.Builder().addTrustedCertificate(one.certificate).build()
        return OkHttpClient.Builder().sslSocketFactory(certificates.sslSocketFactory(), certificates.trustManager).build()
    }

    private suspend fun call(http: OkHttpClient, pinned: HeldCertificate?): ByteArray {
        val pins = CertificatePinner.Builder().apply { pinned?.let { add("localhost", CertificatePinner.pin(it.certificate)) } }.build()
        val link = SuperLink("https://localhost:${server.port}", http = http.newBuilder().certificatePinner(pins).build(), patienceMillis = 0)
        return Http(link, testKey, 1000).call("pull-messages", Node.getDefaultInstance())
    }
}
