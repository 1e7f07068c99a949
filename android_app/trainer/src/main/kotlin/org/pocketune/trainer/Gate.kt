package org.pocketune.trainer

import kotlinx.coroutines.channels.SendChannel
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.withTimeoutOrNull

/** Where a training waits between two steps, for the user or for the device. */
internal class Gate(private val guards: Guards) {
    /** Whether the user asked for a pause. */
    val isHeld = MutableStateFlow(false)

    /** Returns when nothing speaks against the next step; says why it waits, once for each reason. */
    suspend fun pass(events: SendChannel<TrainEvent>, checkGoesOn: suspend () -> Unit) {
        var told: PauseReason? = null
        while (true) {
            checkGoesOn()
            val reason = reason() ?: break
            if (told == null || reason::class != told::class) events.send(TrainEvent.Paused(reason))
            told = reason
            // A release by the user ends the wait at once; the device has to be asked.
            if (reason == PauseReason.Person) isHeld.first { !it }
            else withTimeoutOrNull(guards.pollMillis) { isHeld.first { it } }
        }
        if (told != null) events.send(TrainEvent.Resumed)
    }

    private fun reason(): PauseReason? = if (isHeld.value) PauseReason.Person else guards.reasonToPause()
}
