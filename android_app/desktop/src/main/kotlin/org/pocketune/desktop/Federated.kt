package org.pocketune.desktop

import java.io.File
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.pocketune.federated.FederatedClient
import org.pocketune.federated.FederatedException
import org.pocketune.federated.KeyPairOf
import org.pocketune.federated.Participant
import org.pocketune.federated.Rows
import org.pocketune.federated.SuperLink
import org.pocketune.runtime.tflite.TfliteRuntimeFactory
import org.pocketune.trainer.Program

/**
 * Takes part in the rounds of a Flower SuperLink as a phone would. `NAME.federated/`, in the current folder, keeps the client's
 * key, the shared state and, where tensors are personal, its own.
 */
internal fun takePart(file: File, arguments: List<String>): Unit = runBlocking {
    val (options, files) = paired(arguments)
    val data = files.singleOrNull() ?: throw UsageException("one file of data, got $files")
    (options.keys - setOf("--superlink", "--idle", "--poll", "--personal")).firstOrNull()?.let { throw UsageException("unknown option $it") }
    fun seconds(name: String): Double? = options[name]?.last()?.let {
        it.toDoubleOrNull() ?: throw UsageException("$name takes a number, got $it")
    }
    val address = options.getValue("--superlink").last()
    val link = try {
        SuperLink(if ("://" in address) address else "http://$address")
    } catch (error: IllegalArgumentException) {
        throw UsageException(error.message.orEmpty())
    }
    val program = Program.open(file)
    val rows = Rows(samplesOf(File(data), program.manifest))
    val folder = File("${file.nameWithoutExtension}.federated")
    Participant.open(program, TfliteRuntimeFactory(), folder, personal = options["--personal"].orEmpty()).use { participant ->
        println("what leaves this machine in a round: ${participant.bytes} bytes of numbers")
        if (participant.personal.isNotEmpty()) println("what stays here, in ${participant.own}: ${participant.personal.joinToString()}")
        val poll = ((seconds("--poll") ?: 3.0) * 1000).toLong()
        val client = FederatedClient(participant, link, KeyPairOf(keyIn(folder)), poll) { println(it) }
        val served = launch {
            try {
                val did = client.serve(seconds("--idle")?.let { (it * 1000).toLong() }) { rows }
                println("answered ${did.messages} messages, ${did.bytes} bytes left this machine")
            } catch (error: FederatedException) {
                throw UsageException(error.message.orEmpty())
            }
        }
        // Interrupted, it says that it goes.
        val leaving = Thread { runBlocking { served.cancelAndJoin() } }
        Runtime.getRuntime().addShutdownHook(leaving)
        served.join()
    }
}

/** Options with what follows each of them, and the other arguments. */
private fun paired(arguments: List<String>): Pair<Map<String, List<String>>, List<String>> {
    val options = LinkedHashMap<String, List<String>>()
    val files = mutableListOf<String>()
    val left = arguments.iterator()
    while (left.hasNext()) {
        val one = left.next()
        when {
            !one.startsWith("--") -> files += one
            left.hasNext() -> options[one] = options[one].orEmpty() + left.next()
            else -> throw UsageException("$one of what?")
        }
    }
    return options to files
}

/** The key of this client, made where there is none. */
private fun keyIn(folder: File) = File(folder.apply { mkdirs() }, "key").let { private ->
    val public = File(folder, "key.pub")
    if (!public.exists()) {
        val pair = KeyPairOf.generate()
        private.createNewFile()
        private.setReadable(false, false)
        private.setReadable(true, true)
        private.writeBytes(pair.private.encoded)
        public.writeBytes(pair.public.encoded)
    }
    KeyPairOf.of(private.readBytes(), public.readBytes())
}
