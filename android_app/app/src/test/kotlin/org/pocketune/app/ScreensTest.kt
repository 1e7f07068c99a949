package org.pocketune.app

import android.app.AlertDialog
import android.content.DialogInterface
import android.graphics.Rect
import android.view.View
import android.view.ViewGroup
import android.widget.TextView
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.pocketune.app.core.Change
import org.pocketune.app.core.Comparison
import org.pocketune.app.core.Drawing
import org.pocketune.app.core.Event
import org.pocketune.app.core.Notes
import org.pocketune.app.core.Problem
import org.pocketune.app.core.Screen
import org.pocketune.app.core.Standing
import org.pocketune.app.core.Switch
import org.pocketune.app.core.Training
import org.pocketune.app.ui.StrokePad
import org.robolectric.RobolectricTestRunner
import org.robolectric.shadows.ShadowDialog

/** Every screen in light, dark, large letters and German: pictures to look at, and no text that is cut off. */
@RunWith(RobolectricTestRunner::class)
class ScreensTest {
    private class Look(val name: String, val qualifiers: String, val fontScale: Float = 1f)

    private val looks = listOf(
        Look("light", "en-w360dp-h740dp-notnight-hdpi"),
        Look("dark", "en-w360dp-h740dp-night-hdpi"),
        Look("german", "de-w360dp-h740dp-notnight-hdpi"),
        Look("large", "en-w360dp-h740dp-notnight-hdpi", 2f),
        Look("large-german", "de-w320dp-h740dp-notnight-hdpi", 2f),
        Look("land", "en-w740dp-h360dp-land-notnight-hdpi"),
        Look("land-large-german", "de-w640dp-h320dp-land-notnight-hdpi", 2f),
        Look("tablet", "en-w900dp-h1200dp-notnight-hdpi"),
    )

    @Test fun `all screens in all looks`() = Robot().use { robot ->
        robot.waitFor("the model") { it.model != null }
        photographAll(robot, "empty", looks.take(2))
        teach(robot)
        robot.recreate(looks[0].qualifiers)
        robot.show(Screen.PERSONALIZE)
        robot.photograph("ready-personalize")
        robot.app.brake.holdAfter(40)
        robot.tap(R.id.personalize)
        robot.pauseAfter(40)
        for (look in looks) {
            robot.recreate(look.qualifiers, look.fontScale)
            check(robot, "running-${look.name}")
        }
        robot.tap(R.id.pause)
        robot.waitFor("the end") { it.training == Training.Idle && it.comparison != null }
        robot.recreate(looks[0].qualifiers, 1f)
        robot.show(Screen.TRY)
        robot.write(robot.activity.findViewById<StrokePad>(R.id.try_pad), Fixtures.read.person[4].strokes)
        robot.waitFor("an answer") { it.trial.isCurrent && it.trial.personal.isNotEmpty() }
        photographAll(robot, "", looks)
        robot.app.tell(Event.Show(Screen.COMPARE))
        robot.app.tell(Event.Undo)
        robot.waitFor("undone") { !it.personal }
        robot.recreate(looks[0].qualifiers, 1f)
        robot.photograph("undone-compare")
        robot.app.tell(Event.Choose(10))
        for (look in looks) {
            robot.recreate(look.qualifiers, look.fontScale)
            robot.show(Screen.TEACH)
            check(robot, "symbol-teach-${look.name}")
        }
    }

    @Test fun `the model's card is on the screen about it`() = Robot().use { robot ->
        robot.waitFor("the model") { it.model != null }
        robot.show(Screen.ABOUT)
        val facts = robot.activity.findViewById<ViewGroup>(R.id.facts)
        val texts = (0 until facts.childCount).map { facts.getChildAt(it).findViewById<TextView>(R.id.fact_text).text }
        assertTrue("$texts", texts.any { "CC BY 4.0" in it })
    }

    @Test fun `every problem is a sentence of its own that fits`() = Robot().use { robot ->
        robot.waitFor("the model") { it.model != null }
        for (look in looks.filter { "large" in it.name }) { // what fits there fits elsewhere
            robot.recreate(look.qualifiers, look.fontScale)
            val sentences = Problem.entries.map { problem ->
                robot.waitFor("$problem") { state ->
                    robot.app.pretend { it.copy(problem = problem) }
                    state.problem == problem
                }
                check(robot, "problem-${problem.name.lowercase()}-${look.name}")
                robot.text(R.id.problem_text)
            }
            assertEquals(Problem.entries.size, sentences.toSet().size)
        }
    }

    @Test fun `what came of a training is not shown without its program`() = Robot().use { robot ->
        robot.waitFor("the model") { it.model != null }
        val drawing = Drawing(1, 3, Fixtures.read.person[0].strokes, heldOut = true)
        val comparison = Comparison(0.5, 0.9, 1, listOf(Change(drawing, 5, 3)), Standing.OFFERED)
        val notes = Notes(listOf(drawing), comparison = comparison, switched = Switch.UNDONE)
        robot.waitFor("an empty screen") { state ->
            robot.app.pretend { it.copy(model = null, screen = Screen.COMPARE, notes = notes) }
            state.screen == Screen.COMPARE && state.model == null
        }
        for (id in listOf(R.id.scores, R.id.undo)) assertFalse(robot.activity.findViewById<View>(id).isShown)
    }

    @Test fun `a name that is being typed outlives a rotation`() = Robot().use { robot ->
        robot.waitFor("the model") { it.model != null }
        val classes = robot.activity.findViewById<ViewGroup>(R.id.classes)
        robot.tap(classes.getChildAt(classes.childCount - 1))
        val before = ShadowDialog.getLatestDialog()
        before.findViewById<TextView>(R.id.name).text = "Ω"
        robot.recreate("land")
        assertFalse("the window of the old activity is gone", before.isShowing)
        val dialog = ShadowDialog.getLatestDialog() as AlertDialog
        assertEquals("Ω", dialog.findViewById<TextView>(R.id.name).text.toString())
        dialog.getButton(DialogInterface.BUTTON_POSITIVE).performClick()
        robot.waitFor("a symbol") { it.notes.symbols == listOf("Ω") && it.labels[it.chosen] == "Ω" }
        robot.tap(R.id.rename)
        val renaming = ShadowDialog.getLatestDialog() as AlertDialog
        assertEquals("Ω", renaming.findViewById<TextView>(R.id.name).text.toString())
        renaming.findViewById<TextView>(R.id.name).text = "★"
        renaming.getButton(DialogInterface.BUTTON_POSITIVE).performClick()
        robot.waitFor("another name") { it.notes.symbols == listOf("★") }
    }

    private fun teach(robot: Robot) {
        for (drawing in Fixtures.read.person) {
            robot.app.tell(Event.Choose(drawing.label))
            drawing.strokes.forEach { stroke -> robot.app.tell(Event.Draw(stroke.map { it.copy(x = it.x / 0.6, y = it.y / 0.6) })) }
            robot.app.tell(Event.Add)
        }
        robot.app.tell(Event.AddSymbol("★"))
        robot.app.tell(Event.Choose(4))
        robot.waitFor("drawings") { it.notes.drawings.size == Fixtures.read.person.size && it.chosen == 4 }
    }

    private fun photographAll(robot: Robot, prefix: String, looks: List<Look>) {
        for (look in looks) {
            robot.recreate(look.qualifiers, look.fontScale)
            for (screen in Screen.entries) {
                robot.show(screen)
                check(robot, listOf(prefix, screen.name.lowercase(), look.name).filter { it.isNotEmpty() }.joinToString("-"))
            }
        }
    }

    private fun check(robot: Robot, name: String) {
        robot.photograph(name)
        val room = robot.activity.findViewById<View>(R.id.screens).height
        assertTrue("$name: nothing is left for the screen", room > robot.activity.window.decorView.height / 4)
        for (id in listOf(R.id.pad, R.id.try_pad)) {
            val pad = robot.activity.findViewById<View>(id)?.takeIf { it.isShown && "-land" in name } ?: continue
            val seen = Rect()
            assertTrue("$name: the sheet is not there", pad.getGlobalVisibleRect(seen))
            assertEquals("$name: the sheet is half hidden", pad.height, seen.height())
            assertTrue("$name: the sheet is small", pad.height > room / 2)
        }
        val texts = robot.activity.findViewById<View>(android.R.id.content).texts()
        for (text in texts) assertTrue("$name: '${text.text}' is cut off", text.isWhole())
    }

    private fun View.texts(): List<TextView> = when {
        visibility != View.VISIBLE -> emptyList()
        this is TextView -> listOf(this)
        this is ViewGroup -> (0 until childCount).flatMap { getChildAt(it).texts() }
        else -> emptyList()
    }

    /** All lines are inside of the view, and none ends in an ellipsis. */
    private fun TextView.isWhole(): Boolean {
        val lines = layout ?: return true
        val inside = (0 until lines.lineCount).all {
            lines.getLineMax(it) <= width - totalPaddingLeft - totalPaddingRight + 1 && lines.getEllipsisCount(it) == 0
        }
        return inside && lines.height <= height - totalPaddingTop - totalPaddingBottom + 1
    }
}
