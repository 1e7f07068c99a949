package org.pocketune.app

import android.view.View
import android.view.ViewGroup
import android.widget.TextView
import java.io.File
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.pocketune.app.core.Screen
import org.pocketune.app.core.Standing
import org.pocketune.app.core.Switch
import org.pocketune.app.core.Training
import org.pocketune.app.core.UiState
import org.pocketune.app.device.TrainingService
import org.pocketune.app.ui.StrokePad
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf

/** A person whose handwriting nobody tuned anything on, from the touch of the finger to a model of their own. */
@RunWith(RobolectricTestRunner::class)
class PersonalizeTest {
    private val person = Fixtures.read.person

    @Test fun `a person teaches, personalizes, undoes, and loses nothing on the way`() = Robot().use { robot ->
        robot.waitFor("the model") { it.model != null }
        person.forEach { robot.teach(it.label, it.strokes) }
        assertEquals(person.map { it.label }, robot.state.notes.drawings.map { it.label })
        assertEquals(20, robot.state.heldOut.size)

        val original = answers(robot)
        robot.app.recorder.file = File("target/recorded").apply { mkdirs() }.resolve("train.bin").apply { delete() }
        personalizeThroughRotations(robot)
        robot.app.recorder.file = null

        val comparison = checkNotNull(robot.state.comparison)
        File("target/recorded/result.txt").writeText("${comparison.before} ${comparison.after}\n")
        assertTrue("$comparison", comparison.after - comparison.before >= 0.15)
        assertEquals(Standing.OFFERED, comparison.standing)
        assertEquals(Screen.COMPARE, robot.state.screen)
        assertEquals("${Math.round(comparison.after * 100)}%", robot.text(R.id.after))

        val personal = answers(robot)
        assertTrue(original != personal)
        robot.show(Screen.COMPARE)
        robot.tap(R.id.undo)
        robot.waitFor("undone") { it.switched == Switch.UNDONE && !it.personal }
        assertEquals(original, answers(robot))
        robot.show(Screen.COMPARE)
        robot.tap(R.id.undo)
        robot.waitFor("brought back") { it.switched == null && it.personal }
        assertEquals(personal, answers(robot))
        robot.show(Screen.COMPARE)
        robot.tap(R.id.reset)
        robot.waitFor("reset") { it.switched == Switch.RESET && !it.personal }
        assertEquals(original, answers(robot))
    }

    @Test fun `a disk that takes nothing is told of in words, and the words can be put away`() {
        File(RuntimeEnvironment.getApplication().noBackupFilesDir, "model/personal.state.partial/in the way").mkdirs()
        Robot().use { robot ->
            robot.waitFor("the model") { it.model != null }
            person.take(3 * 10).forEach { robot.teach(it.label, it.strokes) }
            val original = answers(robot)
            robot.show(Screen.PERSONALIZE)
            robot.tap(R.id.personalize)
            robot.waitFor("a problem") { it.problem != null && it.training == Training.Idle }
            assertTrue(robot.activity.findViewById<View>(R.id.problem).isShown)
            assertEquals(robot.activity.getString(R.string.problem_disk_full), robot.text(R.id.problem_text))
            assertEquals(original, answers(robot))
            robot.tap(R.id.problem_dismiss)
            robot.waitFor("nothing wrong") { it.problem == null }
            assertFalse(robot.activity.findViewById<View>(R.id.problem).isShown)
        }
    }

    private fun personalizeThroughRotations(robot: Robot) {
        robot.show(Screen.PERSONALIZE)
        robot.app.brake.holdAfter(20)
        robot.tap(R.id.personalize)
        robot.waitFor("a training") { it.training != Training.Idle }
        assertEquals(TrainingService::class.java.name, shadowOf(robot.app).nextStartedService.component?.className)
        robot.pauseAfter(20)
        val done = robot.state.running
        robot.recreate("land")
        assertEquals(Screen.PERSONALIZE, robot.state.screen)
        robot.recreate("port")
        assertEquals(done.losses, robot.state.running.losses)
        assertEquals(robot.activity.getString(R.string.paused_person), robot.text(R.id.note))
        robot.photograph("personalize-paused")
        robot.tap(R.id.pause)
        robot.waitFor("the end") { it.training == Training.Idle && it.comparison != null }
    }

    private val UiState.running get() = training as? Training.Running ?: Training.Running()

    /** What the person's model says to some drawings, on the Try screen. */
    private fun answers(robot: Robot): List<String> {
        robot.show(Screen.TRY)
        return person.take(SHOWN).map { drawing ->
            if (robot.state.trial.strokes.isNotEmpty()) robot.tap(R.id.try_clear)
            robot.waitFor("a clear pad") { it.trial.strokes.isEmpty() }
            robot.write(robot.activity.findViewById<StrokePad>(R.id.try_pad), drawing.strokes)
            robot.waitFor("an answer") { it.trial.strokes.size == drawing.strokes.size && it.trial.isCurrent }
            val cards = robot.activity.findViewById<ViewGroup>(R.id.answers)
            cards.getChildAt(1).findViewById<TextView>(R.id.answer_rest).text.toString()
        }
    }

    private companion object {
        const val SHOWN = 10
    }
}
