package org.pocketune.app.device

import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.app.job.JobService
import android.content.ComponentName
import android.content.Context
import java.util.concurrent.TimeUnit
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.launch
import org.pocketune.app.PocketuneApp
import org.pocketune.app.core.Event

/** Personalizes once a night, while the device is idle and charging, if there is something new to learn. */
class NightJob : JobService() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main)
    private val app get() = application as PocketuneApp
    private var work: Job? = null

    override fun onStartJob(parameters: JobParameters): Boolean {
        work = scope.launch {
            val ready = app.states.first { it.model != null || it.problem != null }
            if (ready.canPersonalize && ready.notes.hasNew) {
                app.tell(Event.Personalize)
                app.states.first { it.trainings > ready.trainings }
            }
            jobFinished(parameters, false)
        }
        return true
    }

    /** The night is over early; what is done so far is dropped, and the next night begins anew. */
    override fun onStopJob(parameters: JobParameters): Boolean {
        work?.cancel()
        app.tell(Event.Cancel)
        return false
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    companion object {
        private const val ID = 1

        /** Begins or ends the nights. */
        fun plan(context: Context, nightly: Boolean) {
            val scheduler = context.getSystemService(JobScheduler::class.java)
            if (!nightly) return scheduler.cancel(ID)
            // To schedule it again would end it where it runs, which may be why this process began.
            if (scheduler.getPendingJob(ID) != null) return
            scheduler.schedule(
                JobInfo.Builder(ID, ComponentName(context, NightJob::class.java))
                    .setPeriodic(TimeUnit.DAYS.toMillis(1))
                    .setRequiresDeviceIdle(true)
                    .setRequiresCharging(true)
                    .setPersisted(true)
                    .build(),
            )
        }
    }
}
