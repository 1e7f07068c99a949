package org.pocketune.trainer

import java.io.File
import java.nio.ByteBuffer
import kotlin.test.assertEquals
import kotlin.test.assertFailsWith
import kotlin.test.assertTrue
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.jsonObject
import org.junit.jupiter.api.DynamicTest
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.TestFactory

/**
 * Manifests, and by the name of a bad one a part of what its refusal says; the readers of all languages are held to them.
 */
class ManifestTest {
    private val folder = File(System.getProperty("manifests"))
    private val places = Json.parseToJsonElement(File(folder, "places.json").readText()).jsonObject

    private fun vectors(kind: String) = File(folder, kind).listFiles().orEmpty().sorted()

    @TestFactory
    fun `good manifests are read`() = vectors("good").map {
        DynamicTest.dynamicTest(it.name) { assertTrue(read(it).stateTensors.isNotEmpty()) }
    }

    @TestFactory
    fun `bad manifests are refused by the place`() = vectors("bad").map {
        DynamicTest.dynamicTest(it.name) {
            val place = (places.getValue(it.nameWithoutExtension) as JsonPrimitive).content
            val said = assertFailsWith<ProgramException> { read(it) }.message.orEmpty()
            // A word that an enumeration does not have is told by the name of its class.
            assertTrue(said.contains(place, ignoreCase = true), "'$place' is not in '$said'")
        }
    }

    @Test
    fun `there are vectors, and every bad one has a place`() {
        assertTrue(vectors("bad").size >= 60 && vectors("good").size >= 15)
        assertEquals(vectors("bad").map { it.nameWithoutExtension }.toSet(), places.keys)
    }

    private fun read(file: File): Manifest = readManifest(ByteBuffer.wrap(file.readBytes()))
}
