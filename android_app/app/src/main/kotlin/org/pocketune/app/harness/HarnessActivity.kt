package org.pocketune.app.harness

import android.app.Activity
import android.app.ActivityManager
import android.content.Intent
import android.os.Build
import android.os.Bundle
import android.os.Debug
import android.os.Process
import android.util.Log
import android.view.WindowManager
import android.widget.TextView
import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put
import org.pocketune.app.device.Device

/** Runs a job file in the foreground, as the app itself would. Only the shell may start it; see docs/harness.md. */
class HarnessActivity : Activity() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        window.addFlags(WindowManager.LayoutParams.FLAG_KEEP_SCREEN_ON)
        val path = intent.getStringExtra(JOB)
        setContentView(TextView(this).apply { text = path })
        if (savedInstanceState == null) return start(path)
        // Android ended the job with the window before this one: it leaves no result.
        Log.e(TAG, "interrupted")
        finishAndRemoveTask()
    }

    /** One job at a time: another one is told of in the log and left alone. */
    override fun onNewIntent(intent: Intent) {
        super.onNewIntent(intent)
        Log.e(TAG, "busy")
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    private fun start(path: String?) {
        val device = Device(this)
        val harness = Harness(
            results = checkNotNull(getExternalFilesDir("harness")) { "no storage that the shell can read" },
            scratch = File(cacheDir, "harness"),
            device = facts(),
            conditions = { conditions(device) },
            cpuMillis = { Process.getElapsedCpuTime().toDouble() },
        )
        scope.launch {
            try {
                val job = Json.decodeFromString<Job>(File(checkNotNull(path) { "no extra $JOB" }).readText())
                harness.run(job)
                Log.i(TAG, "done ${job.id}")
            } catch (e: Exception) {
                Log.e(TAG, "failed", e)
            }
            finishAndRemoveTask()
        }
    }

    private fun facts(): JsonObject = buildJsonObject {
        put("manufacturer", Build.MANUFACTURER)
        put("model", Build.MODEL)
        put("fingerprint", Build.FINGERPRINT)
        put("hardware", Build.HARDWARE)
        put("soc", if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.S) Build.SOC_MODEL else null)
        put("sdk", Build.VERSION.SDK_INT)
        put("abi", Build.SUPPORTED_ABIS.firstOrNull())
        put("cores", Runtime.getRuntime().availableProcessors())
        put("memory_bytes", memory().totalMem)
        put("app", packageManager.getPackageInfo(packageName, 0).versionName)
    }

    private fun conditions(device: Device): JsonObject = buildJsonObject {
        put("thermal", device.thermal?.name?.lowercase())
        put("battery_percent", device.charge)
        put("charging", device.isCharging)
        put("native_heap_bytes", Debug.getNativeHeapAllocatedSize())
        put("pss_kib", Debug.getPss())
        put("available_bytes", memory().availMem)
    }

    private fun memory() =
        ActivityManager.MemoryInfo().also(getSystemService(ActivityManager::class.java)::getMemoryInfo)

    private companion object {
        const val JOB = "job"
        const val TAG = "PocketuneHarness"
    }
}
