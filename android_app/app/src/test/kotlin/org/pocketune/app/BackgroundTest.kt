package org.pocketune.app

import android.app.Notification
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.content.Intent
import android.os.Bundle
import kotlinx.serialization.json.Json
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertSame
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.pocketune.app.core.Event
import org.pocketune.app.core.Kept
import org.pocketune.app.core.Problem
import org.pocketune.app.core.Screen
import org.pocketune.app.core.Training
import org.pocketune.app.device.NightJob
import org.pocketune.app.device.TrainingService
import org.pocketune.app.harness.HarnessActivity
import org.robolectric.Robolectric
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.shadow.api.Shadow

/** What goes on when the app is not seen. */
@RunWith(RobolectricTestRunner::class)
class BackgroundTest {
    @Test fun `the nights are planned for an idle device on its charger`() = Robot().use { robot ->
        robot.show(Screen.PERSONALIZE)
        robot.tap(R.id.nightly)
        robot.waitFor("nights") { it.nightly }
        val scheduler = robot.app.getSystemService(JobScheduler::class.java)
        robot.waitFor("a plan") { scheduler.allPendingJobs.isNotEmpty() }
        val job = scheduler.allPendingJobs.single()
        assertEquals(NightJob::class.java.name, job.service.className)
        assertTrue(job.isRequireDeviceIdle && job.isRequireCharging && job.isPersisted && job.isPeriodic)
        robot.tap(R.id.nightly)
        robot.waitFor("no plan") { scheduler.allPendingJobs.isEmpty() }
    }

    @Test fun `a planned night is left alone, for it may be running`() {
        val app = RuntimeEnvironment.getApplication()
        val scheduler = app.getSystemService(JobScheduler::class.java)
        NightJob.plan(app, nightly = true)
        val planned = scheduler.allPendingJobs.single()
        NightJob.plan(app, nightly = true)
        assertSame(planned, scheduler.allPendingJobs.single())
    }

    @Test fun `a night trains what is new and ends`() = Robot().use { robot ->
        teachAFew(robot)
        // What the person has not read yet must not keep the night from its work.
        robot.app.pretend { it.copy(problem = Problem.STATE_OLDER) }
        night(robot)
        assertTrue(robot.state.comparison != null && !robot.state.notes.hasNew)
        robot.app.tell(Event.Show(Screen.TEACH))
        val trained = robot.state.comparison
        night(robot)
        assertSame("there was nothing new", trained, robot.state.comparison)
    }

    @Test fun `a night does not cost what the window had kept`() {
        val app = RuntimeEnvironment.getApplication() as TestApp
        val job = Robolectric.buildService(NightJob::class.java).create()
        job.get().onStartJob(Shadow.newInstanceOf(JobParameters::class.java))
        app.tell(Event.Cancel)
        val kept = Kept(Screen.TEACH, 7, listOf(Fixtures.read.person[0].strokes[0]), emptyList())
        val saved = Bundle().apply { putString("kept", Json.encodeToString(Kept.serializer(), kept)) }
        Robot(saved).use { robot -> robot.waitFor("the draft") { it.chosen == 7 && it.draft == kept.draft } }
        job.destroy()
    }

    /** One night from its beginning to its end. */
    private fun night(robot: Robot) {
        val job = Robolectric.buildService(NightJob::class.java).create()
        assertTrue(job.get().onStartJob(Shadow.newInstanceOf(JobParameters::class.java)))
        robot.waitFor("the morning") { shadowOf(job.get()).isJobFinished && it.training == Training.Idle }
        job.destroy()
    }

    private fun teachAFew(robot: Robot) {
        robot.waitFor("the model") { it.model != null }
        repeat(8) {
            robot.app.tell(Event.Draw(Fixtures.read.person[0].strokes[0]))
            robot.app.tell(Event.Add)
        }
        robot.waitFor("drawings") { it.canPersonalize }
    }

    @Test fun `a training shows a notification that can cancel it, and then goes away`() = Robot().use { robot ->
        teachAFew(robot)
        robot.app.brake.holdAfter(0)
        robot.app.tell(Event.Personalize)
        robot.app.tell(Event.Pause)
        robot.waitForPause()
        val service = Robolectric.buildService(TrainingService::class.java).create()
        val shown: Notification = shadowOf(service.get()).lastForegroundNotification
        assertEquals(robot.app.getString(R.string.cancel), shown.actions.single().title)
        val cancel: Intent = shadowOf(shown.actions.single().actionIntent).savedIntent
        service.get().onStartCommand(cancel, 0, 1)
        robot.waitFor("the end") { it.training == Training.Idle && shadowOf(service.get()).isStoppedBySelf }
        service.destroy()
        assertFalse(robot.state.personal)
    }

    @Test fun `the harness without a job says so and leaves`() {
        val window = Robolectric.buildActivity(HarnessActivity::class.java, Intent()).setup()
        val end = System.nanoTime() + 600_000_000_000L
        while (!window.get().isFinishing && System.nanoTime() < end) Thread.sleep(5)
        assertTrue(window.get().isFinishing)
        window.pause().stop().destroy()
    }
}
