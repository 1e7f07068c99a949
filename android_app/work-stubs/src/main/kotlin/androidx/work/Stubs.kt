/*
 * The part of Android's WorkManager that federated-work uses: names and parameters as in androidx.work:work-runtime 2.10. What
 * is enqueued lies in a list of the tests.
 */
package androidx.work

import android.content.Context
import java.util.concurrent.TimeUnit

class WorkerParameters

abstract class ListenableWorker(val applicationContext: Context, @Suppress("unused") parameters: WorkerParameters) {
    class Result private constructor(private val name: String) {
        override fun toString(): String = name

        companion object {
            private val made = listOf("success", "retry", "failure").associateWith(::Result)

            @JvmStatic fun success(): Result = made.getValue("success")

            @JvmStatic fun retry(): Result = made.getValue("retry")

            @JvmStatic fun failure(): Result = made.getValue("failure")
        }
    }
}

abstract class CoroutineWorker(context: Context, parameters: WorkerParameters) : ListenableWorker(context, parameters) {
    abstract suspend fun doWork(): Result
}

enum class NetworkType { NOT_REQUIRED, CONNECTED, UNMETERED }

class Constraints private constructor(val isIdle: Boolean, val isCharging: Boolean, val network: NetworkType) {
    class Builder {
        private var idle = false
        private var charging = false
        private var network = NetworkType.NOT_REQUIRED

        fun setRequiresDeviceIdle(requires: Boolean): Builder = apply { idle = requires }

        fun setRequiresCharging(requires: Boolean): Builder = apply { charging = requires }

        fun setRequiredNetworkType(type: NetworkType): Builder = apply { network = type }

        fun build(): Constraints = Constraints(idle, charging, network)
    }
}

class PeriodicWorkRequest private constructor(val worker: Class<out ListenableWorker>, val hours: Long, val constraints: Constraints) {
    class Builder(private val worker: Class<out ListenableWorker>, every: Long, unit: TimeUnit) {
        private val hours = unit.toHours(every)
        private var constraints = Constraints.Builder().build()

        fun setConstraints(constraints: Constraints): Builder = apply { this.constraints = constraints }

        fun build(): PeriodicWorkRequest = PeriodicWorkRequest(worker, hours, constraints)
    }
}

enum class ExistingPeriodicWorkPolicy { KEEP, UPDATE }

class WorkManager {
    fun enqueueUniquePeriodicWork(name: String, policy: ExistingPeriodicWorkPolicy, request: PeriodicWorkRequest) {
        if (policy == ExistingPeriodicWorkPolicy.KEEP) enqueued.putIfAbsent(name, request) else enqueued[name] = request
    }

    fun cancelUniqueWork(name: String) {
        enqueued.remove(name)
    }

    companion object {
        /** What the tests look at. */
        val enqueued = LinkedHashMap<String, PeriodicWorkRequest>()

        @Suppress("UNUSED_PARAMETER")
        @JvmStatic fun getInstance(context: Context): WorkManager = WorkManager()
    }
}
