package org.pocketune.federated

import java.io.File
import com.google.protobuf.MessageLite
import kotlinx.serialization.json.Json
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
    val built: Map<String, Tensor> = expected.getValue("arrays").jsonObject.mapValues { (_, array) ->
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
 * @param change makes of the right answer what is sent.
 */
internal class Replay(private val change: (String, ByteArray) -> ByteArray = { _, answer -> answer }) {
    val requests = mutableListOf<Pair<String, ByteArray>>()
    val pushed = mutableListOf<Message>()
    val objects = LinkedHashMap<String, ByteArray>()
    private val waiting = ArrayDeque(Recorded.pulls())
    private val known = Recorded.calls.filter { it.name == "pull-object" }
        .associate { PullObjectRequest.parseFrom(it.request).objectId to it.response }

    suspend fun call(name: String, request: MessageLite): ByteArray {
        val bytes = request.toByteArray()
        requests += name to bytes
        return change(name, answer(name, bytes))
    }

    fun answer(name: String, request: ByteArray): ByteArray = when (name) {
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

/** A key of the tests. */
internal val testKey by lazy { KeyPairOf(KeyPairOf.generate()) }

internal fun fleet(replay: Replay, most: Long = 1L shl 20) = Fleet(testKey, most, { 1.8e9 }, replay::call)
