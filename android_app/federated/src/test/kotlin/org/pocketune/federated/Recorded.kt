package org.pocketune.federated

import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.zip.ZipFile
import com.google.protobuf.MessageLite
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.float
import kotlinx.serialization.json.int
import okio.ByteString.Companion.decodeBase64
import org.pocketune.federated.wire.Message
import org.pocketune.federated.wire.ObjectTree
import org.pocketune.federated.wire.PullMessagesRequest
import org.pocketune.federated.wire.PullMessagesResponse
import org.pocketune.federated.wire.PullObjectRequest
import org.pocketune.federated.wire.PushMessagesRequest
import org.pocketune.federated.wire.PushMessagesResponse
import org.pocketune.federated.wire.PushObjectRequest
import org.pocketune.federated.wire.PushObjectResponse
import org.pocketune.trainer.Sample

/** A call of a client in Python, and what an unmodified SuperLink answered (`tests/federated/record.py`). */
internal class Call(val name: String, val request: ByteArray, val response: ByteArray)

/** The recorded round. */
internal object Recorded {
    val folder = File(System.getProperty("recorded"))

    val calls: List<Call> = File(folder, "round.jsonl").readLines().map { Json.parseToJsonElement(it).jsonObject }.map {
        fun bytes(name: String) = it.getValue(name).jsonPrimitive.content.decodeBase64()!!.toByteArray()
        Call(it.getValue("call").jsonPrimitive.content, bytes("request"), bytes("response"))
    }

    val expected: JsonObject = Json.parseToJsonElement(File(folder, "expected.json").readText()).jsonObject

    /** What the program had when it was built, as the host says. */
    val built: Map<String, Tensor> = tensors(expected.getValue("arrays"))

    /** The client's rows. */
    val rows: List<Sample> = ZipFile(File(folder, "rows.npz")).use { zip ->
        fun bytes(name: String) = zip.getInputStream(zip.getEntry(name)).readBytes()
        val x = Npy.read("x", bytes("x.npy")).numbers
        val y = bytes("y.npy").let { ByteBuffer.wrap(it).order(ByteOrder.LITTLE_ENDIAN).apply { position(it.size - 4 * x.size / 8) }.slice() }
            .order(ByteOrder.LITTLE_ENDIAN).asIntBuffer()
        List(x.size / 8) { Sample(x.copyOfRange(8 * it, 8 * it + 8), y.get(it)) }
    }

    /** Arrays as they were written down. */
    fun tensors(listed: JsonElement): Map<String, Tensor> = listed.jsonObject.mapValues { (_, array) ->
        val shape = array.jsonObject.getValue("shape").jsonArray.map { it.jsonPrimitive.int }
        Tensor(shape, array.jsonObject.getValue("numbers").jsonArray.map { it.jsonPrimitive.float }.toFloatArray())
    }

    /** The answers of the client in Python: the ids of each, and all objects by id. */
    val pushed: List<Pair<ObjectTree, Map<String, ByteArray>>> = run {
        val objects = calls.filter { it.name == "push-object" }.map { PushObjectRequest.parseFrom(it.request) }
            .associate { it.objectId to it.objectContent.toByteArray() }
        calls.filter { it.name == "push-messages" }.map { PushMessagesRequest.parseFrom(it.request).getMessageObjectTrees(0) to objects }
    }

    fun pulls(): List<PullMessagesResponse> =
        calls.filter { it.name == "pull-messages" }.map { PullMessagesResponse.parseFrom(it.response) }
            .filter { it.messagesListCount > 0 }
}

/**
 * Answers a client as the SuperLink did, and keeps what it pushes.
 *
 * @param pulls what is to be pulled, in this order.
 * @param change makes of the right answer what is sent.
 */
internal class Replay(
    pulls: List<PullMessagesResponse> = Recorded.pulls(),
    private val change: (String, ByteArray) -> ByteArray = { _, answer -> answer },
) {
    val requests = mutableListOf<Pair<String, ByteArray>>()
    val pushed = mutableListOf<Message>()
    val objects = LinkedHashMap<String, ByteArray>()
    private val waiting = ArrayDeque(pulls)
    private val known = Recorded.calls.filter { it.name == "pull-object" }
        .associate { PullObjectRequest.parseFrom(it.request).objectId to it.response }

    suspend fun call(name: String, request: MessageLite): ByteArray {
        val bytes = request.toByteArray()
        requests += name to bytes
        return changed(name, bytes)
    }

    /** What is sent for an answer. */
    fun changed(name: String, request: ByteArray): ByteArray = change(name, answer(name, request))

    private fun answer(name: String, request: ByteArray): ByteArray = when (name) {
        "pull-messages" -> PullMessagesRequest.parseFrom(request).let { waiting.removeFirstOrNull()?.toByteArray() ?: ByteArray(0) }
        "pull-object" -> known.getValue(PullObjectRequest.parseFrom(request).objectId)
        "push-messages" -> {
            val asked = PushMessagesRequest.parseFrom(request)
            pushed += asked.getMessagesList(0)
            PushMessagesResponse.newBuilder().addAllObjectsToPush(ids(asked.getMessageObjectTrees(0))).setSessionId("s").build().toByteArray()
        }
        "push-object" -> PushObjectRequest.parseFrom(request).let {
            objects[it.objectId] = it.objectContent.toByteArray()
            PushObjectResponse.newBuilder().setStored(true).build().toByteArray()
        }
        else -> Recorded.calls.firstOrNull { it.name == name }?.response ?: ByteArray(0)
    }

    private fun ids(tree: ObjectTree): List<String> = listOf(tree.objectId) + tree.childrenList.flatMap { ids(it) }
}

/** What Android's library links to by name. */
internal fun loadAndroid() {
    for (name in listOf("c", "m", "dl", "log")) System.load("${System.getProperty("java.library.path")}/lib$name.so")
}

/** A key of the tests. */
internal val testKey by lazy { KeyPairOf(KeyPairOf.generate()) }

internal fun fleet(replay: Replay, most: Long = 1L shl 20) = Fleet(testKey, most, { 1.8e9 }, replay::call)
