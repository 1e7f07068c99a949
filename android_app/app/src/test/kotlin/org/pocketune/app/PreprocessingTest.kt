package org.pocketune.app

import java.io.File
import kotlinx.serialization.Serializable
import kotlinx.serialization.json.Json
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Test
import org.pocketune.app.core.Description
import org.pocketune.app.core.Stroke
import org.pocketune.app.core.builtInSamples
import org.pocketune.app.core.checked
import org.pocketune.trainer.DamagedProgramException

/** A drawing and the image that Python made of it. */
@Serializable
class Fixture(val label: Int = 0, val strokes: List<Stroke>, val image: List<Float>)

/** What scripts/build_app_assets wrote for the tests. */
@Serializable
class Fixtures(val odd: List<Fixture>, val person: List<Fixture>) {
    companion object {
        val read: Fixtures by lazy { Json.decodeFromString(File("target/fixtures/strokes.json").readText()) }
    }
}

class PreprocessingTest {
    private val description = Description.parse(File("target/assets/${Description.FILE}").readText())

    @Test fun `equals Python to the last bit`() {
        val fixtures = Fixtures.read.odd + Fixtures.read.person
        assertTrue(fixtures.size > 80)
        for (fixture in fixtures) {
            assertArrayEquals(fixture.image.toFloatArray(), description.preprocessing.image(fixture.strokes), 0f)
        }
    }

    @Test fun `a drawing without points is refused`() {
        assertThrows(IllegalArgumentException::class.java) { description.preprocessing.image(listOf(emptyList())) }
    }

    @Test fun `built-in samples are read as they were written`() {
        val file = description.samples
        val bytes = File("target/assets/${file.file}").readBytes().checked(file.file, file.sha256)
        val samples = builtInSamples(bytes, pixels = 64, levels = file.levels)
        assertEquals(description.labels.indices.toList(), samples.map { it.label }.distinct().sortedBy { it })
        assertEquals(bytes.size, samples.size * 65)
    }

    @Test fun `a description or an asset that was altered is refused`() {
        val text = File("target/assets/${Description.FILE}").readText()
        for (altered in listOf("", "{}", text.dropLast(9), text.replace("strokes/1", "strokes/2"))) {
            assertThrows(DamagedProgramException::class.java) { Description.parse(altered) }
        }
        assertThrows(DamagedProgramException::class.java) {
            "altered".toByteArray().checked("digits.tflite", description.program.sha256)
        }
    }
}
