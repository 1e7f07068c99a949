package org.pocketune.federated.work

import android.content.Context
import android.content.ContextWrapper
import androidx.work.ListenableWorker.Result
import androidx.work.NetworkType
import androidx.work.WorkManager
import androidx.work.WorkerParameters
import java.io.File
import java.net.InetSocketAddress
import com.sun.net.httpserver.HttpServer
import kotlin.test.assertContains
import kotlin.test.assertEquals
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir
import org.pocketune.federated.KeyPairOf
import org.pocketune.federated.Participant
import org.pocketune.federated.Rows
import org.pocketune.federated.SuperLink
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.InputException
import org.pocketune.trainer.Program

/** What WorkManager is told, and when a worker runs. */
class FederatedWorkerTest {
    @TempDir lateinit var folder: File
    private val context: Context = ContextWrapper(null)
    private val program by lazy {
        for (name in listOf("c", "m", "dl", "log")) System.load("${System.getProperty("java.library.path")}/lib$name.so")
        Program.open(File(System.getProperty("recorded"), "program.tflite"))
    }

    private inner class Worker(private val link: SuperLink?) : FederatedWorker(context, WorkerParameters()) {
        val said = mutableListOf<String>()
        override val idleMillis = 100L
        override val pollMillis = 50L

        override suspend fun open(): Federation {
            if (link == null) throw InputException("the program cannot be averaged")
            return Federation(Participant.open(program, TfliteRuntimeFactory(), folder), link, KeyPairOf(KeyPairOf.generate())) { Rows(emptyList()) }
        }

        override fun say(sentence: String) {
            said += sentence
        }
    }

    @Test
    fun `it runs while the phone idles, charges and has a network that is not metered`() {
        FederatedWorker.schedule(context, Worker::class.java, hours = 12)
        val request = WorkManager.enqueued.getValue("pocketune-federated")
        assertEquals(Worker::class.java to 12L, request.worker to request.hours)
        assertTrue(request.constraints.isIdle && request.constraints.isCharging)
        assertEquals(NetworkType.UNMETERED, request.constraints.network)
        FederatedWorker.schedule(context, Worker::class.java, hours = 1)
        assertEquals(12, WorkManager.enqueued.getValue("pocketune-federated").hours, "what was scheduled stays")
        FederatedWorker.cancel(context)
        assertTrue(WorkManager.enqueued.isEmpty())
    }

    @Test
    fun `it ends well where there is no work`() = answered(200) { worker ->
        assertEquals(Result.success(), worker.doWork())
        assertEquals(emptyList(), worker.said)
    }

    @Test
    fun `a federation that does not know the key is not asked again`() = answered(401) { worker ->
        assertEquals(Result.failure(), worker.doWork())
        assertContains(worker.said.single(), "have the server's operator register its key")
    }

    @Test
    fun `a server that is away is tried later, and a program that cannot is not`(): Unit = runBlocking {
        val away = Worker(SuperLink("http://127.0.0.1:9", patienceMillis = 0))
        assertEquals(Result.retry(), away.doWork())
        assertContains(away.said.single(), "no SuperLink answers")
        assertEquals(Result.failure(), Worker(null).doWork())
    }

    private fun answered(code: Int, act: suspend (Worker) -> Unit): Unit = runBlocking {
        val server = HttpServer.create(InetSocketAddress("127.0.0.1", 0), 0)
        server.createContext("/") { exchange ->
            exchange.requestBody.readBytes()
            exchange.sendResponseHeaders(code, -1)
            exchange.close()
        }
        server.start()
        try {
            act(Worker(SuperLink("http://127.0.0.1:${server.address.port}")))
        } finally {
            server.stop(0)
        }
    }
}
