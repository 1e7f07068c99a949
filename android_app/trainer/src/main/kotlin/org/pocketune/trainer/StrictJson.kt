package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import kotlinx.serialization.KSerializer
import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.doubleOrNull

/** JSON of files that are not trusted. The records are the schema; nothing else is let in. */
internal object StrictJson {
    private val json = Json { encodeDefaults = true }
    private const val MAX_DEPTH = 64

    /** Each takes some hundred bytes of memory. A manifest has some hundred for each weight of the model. */
    private const val MAX_VALUES = 300_000

    /** A record as compact JSON, fields in their order. */
    fun <T> encode(serializer: KSerializer<T>, record: T): ByteArray =
        json.encodeToString(serializer, record).toByteArray()

    /**
     * A record from JSON in UTF-8. Throws SerializationException: a field is missing, unknown or of another type.
     */
    fun <T> decode(serializer: KSerializer<T>, bytes: ByteBuffer): T {
        val record: T
        val parsed: JsonElement
        try {
            val text = bytes.text()
            checkBounds(text)
            parsed = json.parseToJsonElement(text)
            record = json.decodeFromJsonElement(serializer, parsed)
        } catch (error: CharacterCodingException) {
            throw SerializationException("not UTF-8", error)
        } catch (error: IllegalArgumentException) {
            throw SerializationException(error.lastLine(), error)
        }
        // The library takes "3" for 3: what was read must be what would be written.
        if (!isWritten(parsed, json.encodeToJsonElement(serializer, record))) {
            throw SerializationException("a number, string or name of another type")
        }
        return record
    }

    /** The parser calls itself at every bracket and keeps every value: a hostile file could exhaust stack and memory. */
    private fun checkBounds(text: String) {
        var depth = 0
        var values = 0
        var inString = false
        var at = 0
        while (at < text.length) {
            val c = text[at]
            when {
                inString && c == '\\' -> at++
                c == '"' -> inString = !inString
                inString -> Unit
                c == '[' || c == '{' -> {
                    values++
                    if (++depth > MAX_DEPTH) throw SerializationException("nested too deeply")
                }
                c == ']' || c == '}' -> depth--
                c == ',' -> values++
            }
            if (values > MAX_VALUES) throw SerializationException("more than $MAX_VALUES values")
            at++
        }
    }

    private fun isWritten(read: JsonElement, written: JsonElement): Boolean =
        when (read) {
            is JsonObject ->
                written is JsonObject && read.all { (name, item) -> written[name]?.let { isWritten(item, it) } == true }
            is JsonArray ->
                written is JsonArray && read.size == written.size && read.indices.all { isWritten(read[it], written[it]) }
            is JsonPrimitive -> written is JsonPrimitive && isSame(read, written)
        }

    private fun isSame(a: JsonPrimitive, b: JsonPrimitive): Boolean {
        if (a.isString != b.isString) return false
        return a.content == b.content || (!a.isString && a.doubleOrNull != null && a.doubleOrNull == b.doubleOrNull)
    }
}
