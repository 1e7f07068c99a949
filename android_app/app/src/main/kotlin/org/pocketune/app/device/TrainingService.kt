package org.pocketune.app.device

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.app.PendingIntent
import android.app.Service
import android.content.Context
import android.content.Intent
import android.content.pm.ServiceInfo
import android.os.Build
import android.os.IBinder
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.takeWhile
import kotlinx.coroutines.launch
import org.pocketune.app.PocketuneApp
import org.pocketune.app.R
import org.pocketune.app.core.Event
import org.pocketune.app.core.Training
import org.pocketune.app.ui.MainActivity

/** Keeps the process alive while it trains, and shows how far it is. It does no work of its own. */
class TrainingService : Service() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Main)
    private val app get() = application as PocketuneApp

    override fun onBind(intent: Intent): IBinder? = null

    override fun onCreate() {
        super.onCreate()
        val notifications = getSystemService(NotificationManager::class.java)
        notifications.createNotificationChannel(
            NotificationChannel(CHANNEL, getString(R.string.channel), NotificationManager.IMPORTANCE_LOW),
        )
        beginForeground(notification(app.states.value.training))
        scope.launch {
            app.states.takeWhile { it.training != Training.Idle }.collect {
                notifications.notify(NOTIFICATION, notification(it.training))
                delay(NOTIFY_MILLIS)
            }
            stopSelf()
        }
    }

    override fun onStartCommand(intent: Intent?, flags: Int, startId: Int): Int {
        if (intent?.action == CANCEL) app.tell(Event.Cancel)
        return START_NOT_STICKY
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    private fun beginForeground(notification: Notification) {
        if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.UPSIDE_DOWN_CAKE) {
            startForeground(NOTIFICATION, notification, ServiceInfo.FOREGROUND_SERVICE_TYPE_SPECIAL_USE)
        } else {
            startForeground(NOTIFICATION, notification)
        }
    }

    private fun notification(training: Training): Notification {
        val open = PendingIntent.getActivity(this, 0, Intent(this, MainActivity::class.java), PendingIntent.FLAG_IMMUTABLE)
        val cancelling = Intent(this, TrainingService::class.java).setAction(CANCEL)
        val cancel = PendingIntent.getService(this, 0, cancelling, PendingIntent.FLAG_IMMUTABLE)
        val running = training as? Training.Running
        return Notification.Builder(this, CHANNEL)
            .setSmallIcon(R.drawable.ic_personalize)
            .setContentTitle(getString(R.string.notification_title))
            .setProgress(running?.steps ?: 0, running?.step ?: 0, running == null || running.steps == 0)
            .setContentIntent(open)
            .setOngoing(true)
            .addAction(Notification.Action.Builder(null, getString(R.string.cancel), cancel).build())
            .build()
    }

    companion object {
        private const val CHANNEL = "training"
        private const val NOTIFICATION = 1
        private const val CANCEL = "org.pocketune.app.CANCEL"

        /** Often enough to look alive, and not so often that Android drops some. */
        private const val NOTIFY_MILLIS = 300L

        /** Call it when a training begins, while the app is seen. */
        fun start(context: Context) {
            context.startForegroundService(Intent(context, TrainingService::class.java))
        }
    }
}
