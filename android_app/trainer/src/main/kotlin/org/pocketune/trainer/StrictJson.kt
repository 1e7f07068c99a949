package org.pocketune.trainer

import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import kotlin.math.abs
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
            parsed = plain(json.parseToJsonElement(text))
            record = json.decodeFromJsonElement(serializer, parsed)
        } catch (error: CharacterCodingException) {
            throw SerializationException("not UTF-8", error)
        } catch (error: IllegalArgumentException) {
            // Behind the first line it repeats what it read.
            throw SerializationException(error.message.orEmpty().lineSequence().first(), error)
        }
        // The library takes "3" for 3: what was read must be what would be written.
        notWritten("", parsed, json.encodeToJsonElement(serializer, record))?.let {
            throw SerializationException("${it.drop(1)}: a number, string or name of another type")
        }
        return record
    }

    /**
     * Words that JSON has, and numbers that are finite: the library takes any word without quotes. A whole number is
     * written as one, whether it was 8, 8.0 or 8e0.
     */
    private fun plain(read: JsonElement): JsonElement =
        when (read) {
            is JsonObject -> JsonObject(read.mapValues { (_, item) -> plain(item) })
            is JsonArray -> JsonArray(read.map(::plain))
            is JsonPrimitive -> if (read.isString || read.content in WORDS) read else number(read)
        }

    private fun number(read: JsonPrimitive): JsonPrimitive {
        val number = if (NUMBER.matches(read.content)) read.content.toDouble() else Double.NaN
        if (number.isNaN() || number.isInfinite()) throw SerializationException("${read.content.take(MOST_TOLD)} is no finite number")
        return if (number % 1 == 0.0 && abs(number) <= EXACT) JsonPrimitive(number.toLong()) else read
    }

    private val WORDS = setOf("true", "false", "null")
    private val NUMBER = Regex("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?")

    /** Above it not every whole number is a float64. */
    private const val EXACT = 9007199254740992.0
    private const val MOST_TOLD = 60

    /** The parser calls itself at every bracket and keeps every value: a hostile file could exhaust stack and memory. */
    private fun checkBounds(text: String) {
        var depth = 0
        var values = 0
        var inString = false
        var at = 0
        while (at < text.length) {
            val c = text[at]
            // The library lets them through.
            if (inString && c < ' ') throw SerializationException("a control character in a string")
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

    /** Where what was read is not what would be written; null where it is so everywhere. */
    private fun notWritten(where: String, read: JsonElement, written: JsonElement?): String? =
        when (read) {
            is JsonObject ->
                if (written !is JsonObject) where
                else read.firstNotNullOfOrNull { (name, item) -> notWritten("$where.$name", item, written[name]) }
            is JsonArray ->
                if (written !is JsonArray || read.size != written.size) where
                else read.indices.firstNotNullOfOrNull { notWritten("$where[$it]", read[it], written[it]) }
            is JsonPrimitive -> where.takeUnless { written is JsonPrimitive && isSame(read, written) }
        }

    private fun isSame(a: JsonPrimitive, b: JsonPrimitive): Boolean {
        if (a.isString != b.isString) return false
        return a.content == b.content || (!a.isString && a.doubleOrNull != null && a.doubleOrNull == b.doubleOrNull)
    }
}
