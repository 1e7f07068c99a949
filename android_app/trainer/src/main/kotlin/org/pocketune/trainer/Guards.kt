package org.pocketune.trainer

/** Heat, as Android's PowerManager counts it; the order is the severity. */
enum class ThermalStatus { NONE, LIGHT, MODERATE, SEVERE, CRITICAL, EMERGENCY, SHUTDOWN }

/** How warm the device is. Called between steps, from the trainer's thread. */
fun interface ThermalSource {
    fun status(): ThermalStatus
}

/** How much charge there is. Called between steps, from the trainer's thread. */
interface BatterySource {
    /** 0..100. */
    fun percent(): Int

    fun isCharging(): Boolean
}

/** How much memory the system can spare. Called between steps, from the trainer's thread. */
fun interface MemorySource {
    fun isLow(): Boolean
}

/** Why a training waits. */
sealed interface PauseReason {
    /** [Trainer.pause] was called. */
    data object Person : PauseReason

    data class Heat(val status: ThermalStatus) : PauseReason

    data class Battery(val percent: Int) : PauseReason

    data object Memory : PauseReason
}

/**
 * When a training must wait. The app gives what the device says; what it leaves out never pauses anything.
 *
 * @property tooHot pauses from this status on.
 * @property leastPercent pauses below this charge, unless charging.
 * @property pollMillis how often a paused training asks again.
 */
class Guards(
    private val thermal: ThermalSource? = null,
    private val battery: BatterySource? = null,
    private val memory: MemorySource? = null,
    val tooHot: ThermalStatus = ThermalStatus.SEVERE,
    val leastPercent: Int = 15,
    val pollMillis: Long = 1000,
) {
    /** The first reason to wait now; null when there is none. */
    fun reasonToPause(): PauseReason? {
        val status = thermal?.status()
        if (status != null && status >= tooHot) return PauseReason.Heat(status)
        val percent = battery?.percent()
        if (percent != null && percent < leastPercent && !battery.isCharging()) return PauseReason.Battery(percent)
        return PauseReason.Memory.takeIf { memory?.isLow() == true }
    }
}
