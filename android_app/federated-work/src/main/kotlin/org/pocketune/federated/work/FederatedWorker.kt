package org.pocketune.federated.work

import android.content.Context
import androidx.work.Constraints
import androidx.work.CoroutineWorker
import androidx.work.ExistingPeriodicWorkPolicy
import androidx.work.NetworkType
import androidx.work.PeriodicWorkRequest
import androidx.work.WorkManager
import androidx.work.WorkerParameters
import java.util.concurrent.TimeUnit
import org.pocketune.federated.FederatedClient
import org.pocketune.federated.FederatedException
import org.pocketune.federated.LostServerException
import org.pocketune.federated.NodeKey
import org.pocketune.federated.Participant
import org.pocketune.federated.Rows
import org.pocketune.federated.SuperLink
import org.pocketune.federated.UnknownNodeException
import org.pocketune.trainer.PocketuneException

/**
 * What a worker takes part with.
 *
 * @property participant closed by the worker.
 * @property rows of the user, read anew for each message.
 */
class Federation(val participant: Participant, val link: SuperLink, val key: NodeKey, val rows: suspend () -> Rows)

/**
 * Takes part in federated rounds under WorkManager. An app extends it, and [schedule]s it once; WorkManager makes one each
 * time. It ends a worker after ten minutes, or when the phone is used: a round that runs then is left to the others.
 */
abstract class FederatedWorker(context: Context, parameters: WorkerParameters) : CoroutineWorker(context, parameters) {
    /** How long it waits for work. */
    protected open val idleMillis: Long = 300_000

    /** Between two questions whether there is work. */
    protected open val pollMillis: Long = 60_000

    /** Opens the app's program, and says where the server is. Throws [PocketuneException]. */
    protected abstract suspend fun open(): Federation

    /** Is told of each round, and of what went wrong, in a sentence. */
    protected open fun say(sentence: String) = Unit

    /** A server that cannot be reached is tried again later; one that does not take this client, or a program that cannot, is not. */
    final override suspend fun doWork(): Result = try {
        val federation = open()
        federation.participant.use { participant ->
            FederatedClient(participant, federation.link, federation.key, pollMillis, ::say).serve(idleMillis) { federation.rows() }
        }
        Result.success()
    } catch (error: FederatedException) {
        say(error.message.orEmpty())
        if (error is LostServerException && error !is UnknownNodeException) Result.retry() else Result.failure()
    } catch (error: PocketuneException) {
        say(error.message.orEmpty())
        Result.failure()
    }

    companion object {
        private const val NAME = "pocketune-federated"

        /**
         * Has a worker run every so many hours while the phone idles, charges and has a network that is not metered. What was
         * scheduled before stays.
         */
        fun schedule(context: Context, worker: Class<out FederatedWorker>, hours: Long = 24) {
            val constraints = Constraints.Builder().setRequiresDeviceIdle(true).setRequiresCharging(true)
                .setRequiredNetworkType(NetworkType.UNMETERED).build()
            val request = PeriodicWorkRequest.Builder(worker, hours, TimeUnit.HOURS).setConstraints(constraints).build()
            WorkManager.getInstance(context).enqueueUniquePeriodicWork(NAME, ExistingPeriodicWorkPolicy.KEEP, request)
        }

        /** Ends that. */
        fun cancel(context: Context) {
            WorkManager.getInstance(context).cancelUniqueWork(NAME)
        }
    }
}
