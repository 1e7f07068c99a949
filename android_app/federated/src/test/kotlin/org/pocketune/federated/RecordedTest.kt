package org.pocketune.federated

import kotlin.test.assertContains
import kotlin.test.assertContentEquals
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.coroutines.runBlocking
import kotlinx.serialization.json.jsonPrimitive
import org.junit.jupiter.api.Test
import com.google.protobuf.ByteString
import org.pocketune.federated.wire.MetricRecord
import org.pocketune.federated.wire.MetricRecordValue
import org.pocketune.federated.wire.ObjectTree
import org.pocketune.federated.wire.PullMessagesResponse
import org.pocketune.federated.wire.PullObjectResponse

/** A round of a real SuperLink, replayed; and servers that say something else. */
class RecordedTest {
    @Test
    fun `what the server sent is what the host built`(): Unit = runBlocking {
        val fleet = fleet(Replay()).apply { join() }
        val asked = checkNotNull(fleet.pull())
        assertEquals("train", asked.head.messageType)
        val arrays = asked.records.arrays.getValue("arrays")
        assertEquals(Recorded.built.keys, arrays.keys)
        for ((name, array) in Recorded.built) {
            assertEquals(array.shape, arrays.getValue(name).shape)
            assertContentEquals(array.numbers, arrays.getValue(name).numbers)
        }
        val config = asked.records.configs.getValue("config")
        assertEquals(Recorded.expected.getValue("identity").jsonPrimitive.content, config["program"])
        assertEquals(RoundPlan(2, null, 0.1f, 0, null, null, 1), RoundPlan.of(config, Bounds()))
        assertEquals("evaluate", fleet.pull()?.head?.messageType)
        assertEquals(null, fleet.pull())
    }

    @Test
    fun `calls are those of Python's client`(): Unit = runBlocking {
        val replay = Replay()
        fleet(replay).apply { join() }.pull()
        val own = Recorded.calls.map { it.name }
        assertEquals(setOf("activate-node", "pull-messages", "pull-object", "confirm-message-received"), replay.requests.map { it.first }.toSet())
        for ((name, bytes) in replay.requests.filter { it.first != "activate-node" }) {
            assertContains(own, name)
            assertTrue(Recorded.calls.any { it.name == name && it.request.contentEquals(bytes) }, name)
        }
    }

    @Test
    fun `an answer of the same numbers has the ids of Flower's`() {
        for ((tree, objects) in Recorded.pushed) {
            val (head, records) = Incoming(objects, 1L shl 20).message(tree.objectId)
            val metrics = MetricRecord.parseFrom(body(objects.getValue(kind("MetricRecord", tree, objects))))
            val figures = metrics.itemsList.associate { it.key to number(it.value) }
            val arrays = records.arrays["arrays"]
            val again = Outgoing.message(head, Outgoing.records(arrays, mapOf("metrics" to Outgoing.metrics(metricsOf(figures)))))
            assertEquals(tree.objectId, again.id)
            assertEquals(tree, again.tree())
            for (one in again.all()) assertContentEquals(objects.getValue(one.id), one.content)
        }
    }

    @Test
    fun `a reply goes to whom asked, and says what was asked`(): Unit = runBlocking {
        val replay = Replay()
        val fleet = fleet(replay).apply { join() }
        val asked = checkNotNull(fleet.pull())
        val sent = fleet.reply(asked.head, Outgoing.records(Recorded.built, mapOf("metrics" to Outgoing.metrics(metricsOf(mapOf("num-examples" to 3))))), 0.5)
        assertEquals(replay.objects.values.sumOf { it.size.toLong() }, sent)
        val reply = replay.pushed.single()
        assertTrue(reply.hasContent(), "left out, the server answers 500")
        assertEquals(asked.head.messageId, reply.metadata.replyToMessageId)
        assertEquals(listOf(asked.head.dstNodeId, asked.head.srcNodeId), listOf(reply.metadata.srcNodeId, reply.metadata.dstNodeId))
        val (_, records) = Incoming(replay.objects, 1L shl 20).message(reply.metadata.messageId)
        assertContentEquals(Recorded.built.getValue("head/w").numbers, records.arrays.getValue("arrays").getValue("head/w").numbers)
    }

    @Test
    fun `a hostile server at worst ends the round, and is told why`() {
        assertContains(refused { name, answer -> if (name == "pull-object") content(answer, ByteArray(40)) else answer }, "not what its id says")
        assertContains(refused { name, answer -> if (name == "pull-messages") tree(answer, deep(9)) else answer }, "9 deep".replace("9", "6"))
        assertContains(refused { name, answer -> if (name == "pull-messages") tree(answer, wide(20_000)) else answer }, "20001 objects")
        assertContains(refused(most = 100) { _, answer -> answer }, "larger than 100 bytes")
        assertContains(refused(isTold = false) { name, answer -> if (name == "pull-messages") byteArrayOf(9, 9, 9) else answer }, "does not answer as")
        assertContains(refused(isTold = false) { name, answer -> if (name == "pull-messages") tree(answer, deep(150)) else answer }, "does not answer as")
    }

    @Test
    fun `objects that are none are refused`() {
        fun opened(objects: List<Outgoing>, root: Outgoing) =
            assertFailsWith<RefusedRoundException> { Incoming(objects.associate { it.id to it.content }, 1000).message(root.id) }.message!!
        val none = Outgoing("RecordDict", "{}".toByteArray())
        assertContains(opened(listOf(none), none), "a RecordDict where a Message is expected")
        val noJson = Outgoing("RecordDict", "[".toByteArray())
        val message = Outgoing("Message", ByteArray(0), listOf(noJson))
        assertContains(opened(message.all(), message), "cannot be read")
        assertContains(opened(listOf(message), message), "is missing")
        // One chunk a thousand times over.
        val chunk = Outgoing("ArrayChunk", ByteArray(10))
        val head = """{"dtype": "float32", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [${List(1000) { 0 }.joinToString()}]}"""
        val array = Outgoing("Array", head.toByteArray(), listOf(chunk))
        val record = Outgoing("ArrayRecord", """{"w": "${array.id}"}""".toByteArray(), listOf(array))
        val dict = Outgoing("RecordDict", """{"arrays": "${record.id}"}""".toByteArray(), listOf(record))
        val bomb = Outgoing("Message", ByteArray(0), listOf(dict))
        assertContains(opened(bomb.all(), bomb), "larger than 1000 bytes")
    }

    private fun refused(most: Long = 1L shl 20, isTold: Boolean = true, change: (String, ByteArray) -> ByteArray): String = runBlocking {
        val replay = Replay(change = change)
        val fleet = fleet(replay, most).apply { join() }
        val error = assertFailsWith<RefusedRoundException> { fleet.pull() }
        if (isTold) assertEquals(error.message, replay.pushed.single().error.reason) else assertTrue(replay.pushed.isEmpty())
        error.message!!
    }

    private fun content(answer: ByteArray, bytes: ByteArray) =
        PullObjectResponse.parseFrom(answer).toBuilder().setObjectContent(ByteString.copyFrom(bytes)).build().toByteArray()

    private fun tree(answer: ByteArray, tree: ObjectTree) =
        PullMessagesResponse.parseFrom(answer).toBuilder().setMessageObjectTrees(0, tree).build().toByteArray()

    private fun deep(levels: Int): ObjectTree =
        (1..levels).fold(ObjectTree.newBuilder().setObjectId("0").build()) { tree, i -> ObjectTree.newBuilder().setObjectId("$i").addChildren(tree).build() }

    private fun wide(count: Int): ObjectTree =
        ObjectTree.newBuilder().setObjectId("r").addAllChildren(List(count) { ObjectTree.newBuilder().setObjectId("$it").build() }).build()

    private fun kind(type: String, tree: ObjectTree, objects: Map<String, ByteArray>): String =
        generateSequence(listOf(tree)) { level -> level.flatMap { it.childrenList }.ifEmpty { null } }.flatten()
            .first { String(objects.getValue(it.objectId), Charsets.ISO_8859_1).startsWith("$type ") }.objectId

    private fun body(content: ByteArray) = content.copyOfRange(content.indexOf(0) + 1, content.size)

    private fun number(value: MetricRecordValue): Number =
        if (value.valueCase == MetricRecordValue.ValueCase.SINT64) value.sint64 else value.double
}
