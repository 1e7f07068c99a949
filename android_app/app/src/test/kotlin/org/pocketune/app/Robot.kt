package org.pocketune.app

import android.graphics.Bitmap
import android.graphics.Canvas
import android.os.Bundle
import android.os.Looper
import android.os.SystemClock
import android.view.MotionEvent
import android.view.View
import android.view.ViewGroup
import android.widget.TextView
import java.io.File
import java.time.Duration
import org.junit.Assert.fail
import org.pocketune.app.core.Notes
import org.pocketune.app.core.Screen
import org.pocketune.app.core.Stroke
import org.pocketune.app.core.Training
import org.pocketune.app.core.UiState
import org.pocketune.app.ui.MainActivity
import org.pocketune.app.ui.StrokePad
import org.robolectric.Robolectric
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController

/** A person in front of the app: touches what is on the screen, and waits for what happens. */
class Robot(private val saved: Bundle? = null) : AutoCloseable {
    val app: TestApp = RuntimeEnvironment.getApplication() as TestApp
    var window: ActivityController<MainActivity> = open()
        private set
    val activity: MainActivity get() = window.get()
    val state: UiState get() = app.states.value

    /** Waits until the app is as wanted and the window shows it. */
    fun waitFor(what: String, seconds: Int = 600, isThere: (UiState) -> Boolean) {
        val end = System.nanoTime() + seconds * 1_000_000_000L
        while (!isThere(state) || activity.drawn != state) {
            if (System.nanoTime() > end) fail("waited $seconds s for: $what; ${state.copy(notes = Notes())}")
            settle()
            Thread.sleep(2)
        }
        settle()
    }

    fun settle() = shadowOf(Looper.getMainLooper()).idleFor(Duration.ofMillis(1))

    fun show(screen: Screen) {
        tap(activity.findViewById<ViewGroup>(R.id.bar).getChildAt(screen.ordinal))
        waitFor("$screen") { it.screen == screen }
    }

    fun tap(id: Int) = tap(activity.findViewById<View>(id))

    fun tap(view: View) {
        check(view.isShown && view.isEnabled) { "not there to be tapped: $view" }
        view.performClick()
        settle()
    }

    fun text(id: Int) = activity.findViewById<TextView>(id).text.toString()

    /** Writes with the finger, in a square of 600 units. */
    fun write(pad: StrokePad, strokes: List<Stroke>) {
        val side = minOf(pad.width, pad.height)
        val left = (pad.width - side) / 2f
        val top = (pad.height - side) / 2f
        check(side > 0) { "the pad was not laid out" }
        for (stroke in strokes) {
            val down = SystemClock.uptimeMillis()
            stroke.forEachIndexed { i, point ->
                val action = if (i == 0) MotionEvent.ACTION_DOWN else MotionEvent.ACTION_MOVE
                touch(pad, action, down, left + point.x.toFloat() / SIDE * side, top + point.y.toFloat() / SIDE * side)
            }
            touch(pad, MotionEvent.ACTION_UP, down, 0f, 0f)
            settle()
        }
    }

    private fun touch(pad: StrokePad, action: Int, down: Long, x: Float, y: Float) {
        SystemClock.setCurrentTimeMillis(SystemClock.uptimeMillis() + 8)
        val event = MotionEvent.obtain(down, SystemClock.uptimeMillis(), action, x, y, 0)
        pad.dispatchTouchEvent(event)
        event.recycle()
    }

    /** Teaches one drawing, all by touch. */
    fun teach(label: Int, strokes: List<Stroke>) {
        val before = state.notes.drawings.size
        tap(activity.findViewById<ViewGroup>(R.id.classes).getChildAt(label))
        waitFor("class $label") { it.chosen == label }
        write(activity.findViewById(R.id.pad), strokes)
        waitFor("${strokes.size} strokes") { it.draft.size == strokes.size }
        tap(R.id.add)
        waitFor("drawing ${before + 1}") { it.notes.drawings.size == before + 1 && it.draft.isEmpty() }
    }

    /** The window goes away and comes back, as on a rotation, with other qualifiers if there are any. */
    fun recreate(qualifiers: String? = null, fontScale: Float? = null) {
        qualifiers?.let(RuntimeEnvironment::setQualifiers)
        fontScale?.let(RuntimeEnvironment::setFontScale)
        window.recreate()
        window.visible()
        settle()
    }

    /** A picture of the window in target/screens. */
    fun photograph(name: String) {
        settle()
        val view = activity.window.decorView
        val bitmap = Bitmap.createBitmap(view.width, view.height, Bitmap.Config.ARGB_8888)
        view.draw(Canvas(bitmap))
        val file = File("target/screens/$name.png").apply { parentFile!!.mkdirs() }
        file.outputStream().use { bitmap.compress(Bitmap.CompressFormat.PNG, 100, it) }
        bitmap.recycle()
    }

    /** Taps Pause after so many steps of a training that was begun with [Brake.holdAfter]. */
    fun pauseAfter(steps: Int) {
        waitFor("$steps steps") { (it.training as? Training.Running)?.step == steps }
        tap(R.id.pause)
        waitForPause()
    }

    /** Until it pauses, the training goes step by step. */
    fun waitForPause() {
        waitFor("a pause") {
            app.brake.step()
            (it.training as? Training.Running)?.paused != null
        }
        app.brake.release()
    }

    override fun close() {
        app.brake.release()
        window.pause().stop().destroy()
        app.onTerminate()
    }

    private fun open(): ActivityController<MainActivity> {
        val window = Robolectric.buildActivity(MainActivity::class.java)
        return (if (saved == null) window.setup() else window.setup(saved)).visible().also { settle() }
    }

    private companion object {
        const val SIDE = 600f
    }
}
