package org.pocketune.federated

import com.google.protobuf.ByteString
import com.google.protobuf.InvalidProtocolBufferException
import com.google.protobuf.MessageLite
import com.google.protobuf.Parser
import kotlinx.coroutines.delay
import org.pocketune.federated.wire.ActivateNodeRequest
import org.pocketune.federated.wire.ActivateNodeResponse
import org.pocketune.federated.wire.ConfirmMessageReceivedRequest
import org.pocketune.federated.wire.DeactivateNodeRequest
import org.pocketune.federated.wire.Error
import org.pocketune.federated.wire.Message
import org.pocketune.federated.wire.Metadata
import org.pocketune.federated.wire.Node
import org.pocketune.federated.wire.ObjectTree
import org.pocketune.federated.wire.PullMessagesRequest
import org.pocketune.federated.wire.PullMessagesResponse
import org.pocketune.federated.wire.PullObjectRequest
import org.pocketune.federated.wire.PullObjectResponse
import org.pocketune.federated.wire.PushMessagesRequest
import org.pocketune.federated.wire.PushMessagesResponse
import org.pocketune.federated.wire.PushObjectRequest
import org.pocketune.federated.wire.PushObjectResponse
import org.pocketune.federated.wire.RecordDict
import org.pocketune.federated.wire.RegisterNodeFleetRequest
import org.pocketune.federated.wire.SendNodeHeartbeatRequest
import org.pocketune.federated.wire.SendNodeHeartbeatResponse

/** A message that came: its metadata with its id, and what it carries. */
internal class Asked(val head: Metadata, val records: Records)

/**
 * One node at a SuperLink, by the calls of Flower 1.42.
 *
 * @param calls a signed request by its name, and its answer.
 * @param most bytes that all objects of a message may have together.
 * @param now seconds since 1970 by the server's clock.
 * @param heldMillis how long a key that the server does not take is tried again.
 * @param taken is told of a message that the server gives to nobody else from then on.
 */
internal class Fleet(
    private val key: NodeKey,
    private val most: Long,
    private val now: () -> Double,
    private val calls: suspend (String, MessageLite) -> ByteArray,
    private val heldMillis: Long = HELD,
    private val taken: (Metadata) -> Unit = {},
) {
    private var node = Node.getDefaultInstance()

    /**
     * Says that the node is there, and registers its key where it is new to the server.
     *
     * A SuperLink refuses a key as long as it takes a node with it for one that is there, as after the app was killed: two
     * heartbeats. So long it is asked again.
     *
     * @param say is told, once, that it is waited.
     * @throws LostServerException there is none, or it does not take this key.
     */
    suspend fun join(say: (String) -> Unit = {}) {
        val end = System.nanoTime() + heldMillis * NANOS
        var wait = FIRST
        while (true) {
            val refused = try {
                return activate()
            } catch (error: EndedRoundException) {
                error
            }
            val left = (end - System.nanoTime()) / NANOS
            if (left <= 0) throw LostServerException("the server does not take this client's key: ${refused.message}")
            if (wait == FIRST) say("the server does not take this client's key yet: if the app was killed, it notes that within a minute")
            delay(minOf(wait, left))
            wait = minOf(2 * wait, LONGEST)
        }
    }

    /** Says that a node is still there; one that the server does not know joins. Throws [LostServerException]. */
    suspend fun joinAgain(say: (String) -> Unit = {}) {
        val isKnown = try {
            read(calls("send-node-heartbeat", sign()), SendNodeHeartbeatResponse.parser()).success
        } catch (_: EndedRoundException) {
            false
        } catch (_: UnknownNodeException) {
            false
        }
        if (!isKnown) join(say)
    }

    private suspend fun activate() {
        val public = ByteString.copyFrom(key.publicPem)
        val asked = ActivateNodeRequest.newBuilder().setPublicKey(public).setHeartbeatInterval(BEAT).build()
        suspend fun once() = read(calls("activate-node", asked), ActivateNodeResponse.parser()).nodeId
        val id = try {
            once()
        } catch (_: EndedRoundException) {
            try {
                calls("register-node", RegisterNodeFleetRequest.newBuilder().setPublicKey(public).build())
            } catch (_: EndedRoundException) {
                // It is known, or the server takes only keys that it knows.
            }
            once()
        }
        node = Node.newBuilder().setNodeId(id).build()
    }

    private fun sign() = SendNodeHeartbeatRequest.newBuilder().setNode(node).setHeartbeatInterval(BEAT).build()

    /** Says that the node is there; a server that does not answer is left to the next call. */
    suspend fun beat() = ignoring { calls("send-node-heartbeat", sign()) }

    /** Says that the node goes; a server that does not answer finds out by itself. */
    suspend fun leave() = ignoring { calls("deactivate-node", DeactivateNodeRequest.newBuilder().setNodeId(node.nodeId).build()) }

    /**
     * The next message, or null where there is nothing to do.
     *
     * @throws RefusedRoundException its objects are too many, too deep, too large or not what their ids say; the server is told.
     * @throws EndedRoundException the run is over.
     * @throws LostServerException there is no server, or it began anew ([UnknownNodeException]).
     */
    suspend fun pull(): Asked? {
        val answer = try {
            read(calls("pull-messages", PullMessagesRequest.newBuilder().setNode(node).build()), PullMessagesResponse.parser())
        } catch (error: EndedRoundException) {
            throw UnknownNodeException("the server does not know this node: ${error.message}")
        }
        val head = answer.messagesListList.firstOrNull() ?: return null
        if (answer.messagesListCount != answer.messageObjectTreesCount) {
            throw RefusedRoundException("the server's message comes without its objects")
        }
        // Nobody would take an answer in that node's name.
        if (head.metadata.dstNodeId != node.nodeId) throw RefusedRoundException("the server's message is for another node")
        taken(head.metadata)
        val tree = answer.getMessageObjectTrees(0)
        return try {
            val (message, records) = Incoming(objects(head.metadata.runId, tree), most).message(tree.objectId)
            if (message.metadata.address() != head.metadata.address()) {
                throw RefusedRoundException("the server's message is not what its envelope says")
            }
            Asked(message.metadata.toBuilder().setMessageId(tree.objectId).build(), records)
        } catch (error: RefusedRoundException) {
            refuse(head.metadata, error.message.orEmpty())
            throw error
        }
    }

    /**
     * Answers with records; returns how many bytes of objects the server had not yet.
     *
     * @param seconds how long the work took.
     */
    suspend fun reply(to: Metadata, records: Outgoing, seconds: Double): Long =
        push(Message.newBuilder().setMetadata(answering(to)).build(), records, seconds)

    /** Answers that a message is not done, and why. */
    suspend fun refuse(to: Metadata, why: String): Long {
        val error = Error.newBuilder().setCode(RAISED).setReason(why).build()
        return push(Message.newBuilder().setMetadata(answering(to)).setError(error).build(), null, 0.0)
    }

    private fun answering(to: Metadata): Metadata = Metadata.newBuilder().apply {
        runId = to.runId
        srcNodeId = to.dstNodeId
        dstNodeId = to.srcNodeId
        replyToMessageId = to.messageId
        groupId = to.groupId
        messageType = to.messageType
        createdAt = now()
        ttl = to.ttl - (createdAt - to.createdAt)
        if (to.hasSrcTaskId()) dstTaskId = to.srcTaskId
    }.build()

    private suspend fun push(message: Message, records: Outgoing?, seconds: Double): Long {
        val root = Outgoing.message(message, records)
        val head = message.toBuilder().setMetadata(message.metadata.toBuilder().setMessageId(root.id))
        // Left out, the server answers 500 without a word.
        if (records != null) head.content = RecordDict.getDefaultInstance()
        val pushed = PushMessagesRequest.newBuilder().setNode(node).addMessagesList(head).addMessageObjectTrees(root.tree())
            .addClientappRuntimeList(seconds).build()
        val answer = read(calls("push-messages", pushed), PushMessagesResponse.parser())
        val wanted = answer.objectsToPushList.toSet()
        val sent = root.all().filter { it.id in wanted }
        for (one in sent) push(message.metadata.runId, one, answer.sessionId)
        return sent.sumOf { it.content.size.toLong() }
    }

    private suspend fun push(run: Long, one: Outgoing, session: String) {
        val asked = PushObjectRequest.newBuilder().setNode(node).setRunId(run).setObjectId(one.id)
            .setObjectContent(ByteString.copyFrom(one.content)).setSessionId(session).build()
        if (!read(calls("push-object", asked), PushObjectResponse.parser()).stored) {
            throw EndedRoundException("the server does not take the answer: the session of its upload is over")
        }
    }

    /** All objects of a message by id; the server is told that they are here. */
    private suspend fun objects(run: Long, tree: ObjectTree): Map<String, ByteArray> {
        val contents = LinkedHashMap<String, ByteArray>()
        var size = 0L
        for (id in ids(tree).asReversed()) {
            val content = pulled(run, id)
            size += content.size
            if (size > most) throw RefusedRoundException("the server's message is larger than $most bytes")
            contents[id] = content
        }
        val all = ConfirmMessageReceivedRequest.newBuilder().setNode(node).setRunId(run).setMessageObjectId(tree.objectId)
        calls("confirm-message-received", all.build())
        return contents
    }

    private suspend fun pulled(run: Long, id: String): ByteArray {
        val asked = PullObjectRequest.newBuilder().setNode(node).setRunId(run).setObjectId(id).build()
        var wait = FIRST
        repeat(TRIES) {
            val answer = read(calls("pull-object", asked), PullObjectResponse.parser())
            if (!answer.objectFound) throw EndedRoundException("object ${id.take(16)} of the server is not there")
            if (answer.objectAvailable) {
                val content = answer.objectContent.toByteArray()
                if (idOf(content) != id) throw RefusedRoundException("object ${id.take(16)} of the server is not what its id says")
                return content
            }
            delay(wait)
            wait = minOf(2 * wait, LONGEST)
        }
        throw EndedRoundException("object ${id.take(16)} of the server does not come")
    }

    /** The ids of a tree, parents first, each once. Throws [RefusedRoundException] where it is larger than any message. */
    private fun ids(tree: ObjectTree): List<String> {
        val found = LinkedHashSet<String>()
        var level = listOf(tree)
        var depth = 0
        var count = 0
        while (level.isNotEmpty()) {
            depth++
            count += level.size
            if (depth > DEPTH || count > OBJECTS) throw RefusedRoundException("the server's message has $count objects, $depth deep, or more")
            level.mapTo(found) { it.objectId }
            level = level.flatMap { it.childrenList }
        }
        return found.toList()
    }

    /** Who says what to whom, and in which run. */
    private fun Metadata.address() = listOf(runId, srcNodeId, dstNodeId, messageType, groupId, replyToMessageId)

    private fun <T> read(bytes: ByteArray, parser: Parser<T>): T = try {
        parser.parseFrom(bytes)
    } catch (error: InvalidProtocolBufferException) {
        throw RefusedRoundException("the server does not answer as a SuperLink does: ${error.message}")
    }

    private suspend fun ignoring(call: suspend () -> Unit) = try {
        call()
    } catch (_: FederatedException) {
        // The next call finds out.
    }

    private companion object {
        const val BEAT = BEAT_SECONDS
        const val DEPTH = 5
        const val OBJECTS = 10_000

        /** Flower's code of an error that an app raised. */
        const val RAISED = 2L
        const val FIRST = 1000L
        const val LONGEST = 10_000L
        const val TRIES = 30
        const val NANOS = 1_000_000L
    }
}

/** Seconds between two signs of life: Flower takes a node for gone after two of them. */
internal const val BEAT_SECONDS = 30.0

/** Milliseconds in which a node that was killed is joined again: those two, and some more. */
internal const val HELD = 65_000L
