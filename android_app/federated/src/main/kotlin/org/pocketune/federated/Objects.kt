package org.pocketune.federated

import com.google.protobuf.InvalidProtocolBufferException
import java.io.ByteArrayOutputStream
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.intOrNull
import okio.ByteString.Companion.toByteString
import org.pocketune.federated.wire.ConfigRecord
import org.pocketune.federated.wire.Message
import org.pocketune.federated.wire.MetricRecord
import org.pocketune.federated.wire.ObjectTree

/** Bytes of a chunk of an array. */
private const val CHUNK = 5_242_880

/** The id of an object: lower hexadecimal sha256 of its content. */
internal fun idOf(content: ByteArray): String = content.toByteString().sha256().hex()

/** What a message carries, by kind and by name; numbers of a config are as Flower's: Double, Long, Boolean, String or others. */
internal class Records(val arrays: Map<String, Map<String, Tensor>>, val configs: Map<String, Map<String, Any>>)

/** An object that is to be sent, with those below it. */
internal class Outgoing(type: String, body: ByteArray, val children: List<Outgoing> = emptyList()) {
    val content: ByteArray =
        "$type ${children.map { it.id }.distinct().joinToString(",")} ${body.size}\u0000".toByteArray(Charsets.US_ASCII) + body
    val id: String = idOf(content)

    fun tree(): ObjectTree =
        ObjectTree.newBuilder().setObjectId(id).addAllChildren(children.distinctBy { it.id }.map { it.tree() }).build()

    /** All of them, children first, each once. */
    fun all(): List<Outgoing> = (children.flatMap { it.all() } + this).distinctBy { it.id }

    companion object {
        /** A message: its metadata without an id, and its records or its error. */
        fun message(head: Message, records: Outgoing?): Outgoing =
            Outgoing("Message", head.toByteArray(), listOfNotNull(records))

        fun records(arrays: Map<String, Tensor>?, others: Map<String, Outgoing>): Outgoing {
            val records = listOfNotNull(arrays?.let { "arrays" to arrays(it) }) + others.toList()
            return Outgoing("RecordDict", json(records), records.map { it.second })
        }

        fun metrics(record: MetricRecord) = Outgoing("MetricRecord", record.toByteArray())

        fun config(record: ConfigRecord) = Outgoing("ConfigRecord", record.toByteArray())

        private fun arrays(tensors: Map<String, Tensor>): Outgoing {
            val arrays = tensors.map { (name, tensor) -> name to array(tensor) }
            return Outgoing("ArrayRecord", json(arrays), arrays.map { it.second })
        }

        private fun array(tensor: Tensor): Outgoing {
            val file = Npy.write(tensor)
            val chunks = (file.indices step CHUNK).map { at ->
                Outgoing("ArrayChunk", file.copyOfRange(at, minOf(at + CHUNK, file.size)))
            }
            val ids = chunks.map { it.id }
            val head = JsonObject(
                mapOf(
                    "dtype" to JsonPrimitive("float32"),
                    "shape" to JsonArray(tensor.shape.map { JsonPrimitive(it) }),
                    "stype" to JsonPrimitive("numpy.ndarray"),
                    "arraychunk_ids" to JsonArray(ids.map { JsonPrimitive(ids.distinct().indexOf(it)) }),
                ),
            )
            return Outgoing("Array", spaced(head).toByteArray(), chunks)
        }

        private fun json(named: List<Pair<String, Outgoing>>): ByteArray =
            spaced(JsonObject(named.associate { (name, it) -> name to JsonPrimitive(it.id) })).toByteArray()

        /** JSON as Python writes it, so that equal objects have the ids of Flower's. */
        private fun spaced(json: JsonElement): String = when (json) {
            is JsonObject -> json.entries.joinToString(", ", "{", "}") { (name, value) -> "${JsonPrimitive(name)}: ${spaced(value)}" }
            is JsonArray -> json.joinToString(", ", "[", "]", transform = ::spaced)
            else -> json.toString()
        }
    }
}

/**
 * Objects that came, put together. What is deeper than a message, its records, their arrays and the chunks of these is never
 * followed.
 *
 * @param contents by their ids, which they have.
 * @param most bytes that the arrays may have together.
 */
internal class Incoming(private val contents: Map<String, ByteArray>, private val most: Long) {
    private var taken = 0L

    /** The message of an id: its metadata, and its records. Throws [RefusedRoundException]. */
    fun message(id: String): Pair<Message, Records> = try {
        val message = open(id, "Message")
        val records = open(message.children.singleOrNull() ?: refuse("it has no records"), "RecordDict")
        Message.parseFrom(message.body) to records(records)
    } catch (error: InvalidProtocolBufferException) {
        refuse(error.message ?: "it is no message")
    } catch (error: SerializationException) {
        refuse(error.message?.lineSequence()?.first() ?: "it is no JSON")
    }

    private fun records(dict: Opened): Records {
        val found = named(dict).mapValues { (_, id) -> openAny(id) }
        val arrays = found.filterValues { it.type == "ArrayRecord" }.mapValues { (_, record) -> arrays(record) }
        val configs = found.filterValues { it.type == "ConfigRecord" }.mapValues { (_, record) -> configOf(ConfigRecord.parseFrom(record.body)) }
        return Records(arrays, configs)
    }

    private fun arrays(record: Opened): Map<String, Tensor> = named(record).mapValues { (name, id) -> array(name, open(id, "Array")) }

    private fun array(name: String, array: Opened): Tensor {
        val head = json(array)
        if ((head["stype"] as? JsonPrimitive)?.content != "numpy.ndarray") refuse("$name is no array of NumPy")
        val parts = (head["arraychunk_ids"] as? JsonArray ?: refuse("$name has no chunks")).map { index ->
            val at = (index as? JsonPrimitive)?.intOrNull
            val chunk = open(array.children.getOrNull(at ?: -1) ?: refuse("$name has no chunk $index"), "ArrayChunk").body
            // Before the next one is copied: an array may name one chunk many times.
            taken += chunk.size
            if (taken > most) refuse("its arrays are larger than $most bytes")
            chunk
        }
        val file = ByteArrayOutputStream(parts.sumOf { it.size })
        parts.forEach(file::write)
        return Npy.read(name, file.toByteArray())
    }

    private fun named(opened: Opened): Map<String, String> = json(opened).mapValues { (name, id) ->
        (id as? JsonPrimitive)?.content?.takeIf { it in opened.children } ?: refuse("$name has no object")
    }

    private fun json(opened: Opened): JsonObject =
        Json.parseToJsonElement(opened.body.toString(Charsets.UTF_8)) as? JsonObject ?: refuse("a ${opened.type} is none")

    private fun open(id: String, type: String): Opened =
        openAny(id).also { if (it.type != type) refuse("a ${it.type} where a $type is expected") }

    private fun openAny(id: String): Opened {
        val content = contents[id] ?: refuse("object ${id.take(16)} is missing")
        val end = content.indexOf(0)
        if (end < 0) refuse("object ${id.take(16)} has no head")
        val head = String(content, 0, end, Charsets.US_ASCII).split(" ")
        if (head.size != 3 || head[2].toIntOrNull() != content.size - end - 1) refuse("object ${id.take(16)} has a bad head")
        return Opened(head[0], head[1].split(",").filter { it.isNotEmpty() }, content.copyOfRange(end + 1, content.size))
    }

    private fun refuse(why: String): Nothing = throw RefusedRoundException("the server's message cannot be read: $why")

    private class Opened(val type: String, val children: List<String>, val body: ByteArray)
}
