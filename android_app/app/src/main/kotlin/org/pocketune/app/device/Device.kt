package org.pocketune.app.device

import android.app.ActivityManager
import android.content.Context
import android.os.BatteryManager
import android.os.Build
import android.os.PowerManager
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.distinctUntilChanged
import kotlinx.coroutines.flow.flow
import org.pocketune.app.core.DeviceFacts
import org.pocketune.app.core.Settings
import org.pocketune.trainer.BatterySource
import org.pocketune.trainer.Guards
import org.pocketune.trainer.MemorySource
import org.pocketune.trainer.ThermalSource
import org.pocketune.trainer.ThermalStatus

/** What the device says about itself. */
class Device(context: Context) {
    private val power = context.getSystemService(PowerManager::class.java)
    private val battery = context.getSystemService(BatteryManager::class.java)
    private val memory = context.getSystemService(ActivityManager::class.java)

    /** Android tells its temperature from version 10 on; before that it is taken for cool. */
    val thermal: ThermalStatus?
        get() = if (Build.VERSION.SDK_INT >= Build.VERSION_CODES.Q) ThermalStatus.entries[power.currentThermalStatus] else null

    /** In percent; null where there is no battery. */
    val charge: Int?
        get() = battery.getIntProperty(BatteryManager.BATTERY_PROPERTY_CAPACITY).takeIf { it in 0..FULL }

    val isCharging: Boolean get() = battery.isCharging

    /** What pauses a training. */
    val guards = Guards(
        thermal = ThermalSource { thermal ?: ThermalStatus.NONE },
        battery = object : BatterySource {
            override fun percent() = charge ?: FULL

            override fun isCharging() = battery.isCharging
        },
        memory = MemorySource { ActivityManager.MemoryInfo().also(memory::getMemoryInfo).lowMemory },
    )

    /** Heat and charge as they change. */
    val facts: Flow<DeviceFacts> = flow {
        while (true) {
            emit(DeviceFacts(thermal, charge, isCharging))
            delay(POLL_MILLIS)
        }
    }.distinctUntilChanged()

    private companion object {
        const val FULL = 100
        const val POLL_MILLIS = 5000L
    }
}

/** Settings in Android's own store. */
class AndroidSettings(context: Context) : Settings {
    private val store = context.getSharedPreferences("settings", Context.MODE_PRIVATE)

    override var nightly: Boolean
        get() = store.getBoolean(NIGHTLY, false)
        set(value) = store.edit().putBoolean(NIGHTLY, value).apply()

    private companion object {
        const val NIGHTLY = "nightly"
    }
}
