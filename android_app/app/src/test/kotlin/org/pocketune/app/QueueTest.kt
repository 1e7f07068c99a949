package org.pocketune.app

import kotlin.random.Random
import kotlinx.coroutines.yield
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.pocketune.app.core.Event
import org.pocketune.app.core.Screen
import org.pocketune.app.core.Standing
import org.pocketune.app.core.Switch
import org.pocketune.app.core.Training
import org.pocketune.trainer.Evaluation
import org.pocketune.trainer.TrainEvent

/** What works on the model goes through one queue: trainings, undo and reset, one after the other. */
class QueueTest : PresenterScene() {
    @Test fun `a training that was cancelled is over before the next begins`() = present {
        taught(List(8) { 0 })
        tell(Event.Personalize)
        until { it.training is Training.Running }
        tell(Event.Cancel, Event.Personalize)
        until { it.training == Training.Ending }
        until { it.training == Training.Idle }
        tell(Event.Personalize)
        until { it.training is Training.Running }
        say(TrainEvent.Started(6, 2, 1, 2, 0, null), TrainEvent.Step(0, 0, 2f, 1.5))
        until { (it.training as Training.Running).losses == listOf(2f) }
    }

    @Test fun `a training that is cancelled before it began is over, and the next one works`() = present {
        taught(List(8) { 0 })
        tell(Event.Personalize, Event.Cancel)
        until { it.trainings == 1 && it.training == Training.Idle }
        assertEquals(listOf("resume", "forget"), coach.calls)
        tell(Event.Personalize)
        say(TrainEvent.Step(0, 0, 2f, 1.5))
        until { (it.training as? Training.Running)?.losses == listOf(2f) }
    }

    @Test fun `a training that is asked for during an undo comes after it`() = present {
        taught(List(8) { 0 })
        tell(Event.Undo, Event.Personalize)
        until { it.isSwitching && it.training is Training.Running }
        assertTrue(coach.learned.isEmpty())
        coach.undone.send(Unit)
        say(TrainEvent.Step(0, 0, 2f, 1.5))
        until { (it.training as Training.Running).losses == listOf(2f) }
        assertFalse(state.isSwitching)
    }

    @Test fun `a training that waits for an undo can be cancelled`() = present {
        taught(List(8) { 0 })
        tell(Event.Undo, Event.Personalize, Event.Cancel)
        until { it.isSwitching && it.training == Training.Ending }
        coach.undone.send(Unit)
        until { it.switched == Switch.UNDONE && it.training == Training.Idle }
        assertEquals(listOf("undo", "forget"), coach.calls - "resume")
    }

    @Test fun `no undo during a training, and none is left over for its end`() = present {
        taught(List(8) { 0 })
        tell(Event.Personalize, Event.Undo, Event.Reset)
        say(TrainEvent.Finished(Evaluation(2.0, 0.25), Evaluation(1.0, 0.75), stoppedEarly = false, adopted = 1))
        until { it.training == Training.Idle && it.comparison != null }
        tell(Event.Show(Screen.ABOUT))
        until { it.screen == Screen.ABOUT }
        assertEquals(listOf("resume"), coach.calls)
        assertTrue(state.personal && !state.isSwitching)
    }

    @Test fun `whatever a person taps, one thing happens at a time and all of it ends`() {
        val taps = listOf(
            Event.Personalize, Event.Personalize, Event.Cancel, Event.Undo, Event.Reset, Event.Pause, Event.Try(stroke),
        )
        val end = TrainEvent.Finished(Evaluation(2.0, 0.25), Evaluation(1.0, 0.75), stoppedEarly = false, adopted = 1)
        for (seed in 0 until 20) present {
            val random = Random(seed)
            taught(List(8) { 0 })
            repeat(40) {
                repeat(random.nextInt(4)) { tell(taps.random(random)) }
                if (random.nextInt(3) == 0) say(TrainEvent.Step(0, 0, 2f, 1.5))
                if (random.nextInt(6) == 0) say(end)
                if (random.nextInt(3) == 0) coach.undone.trySend(Unit)
                repeat(random.nextInt(8)) { yield() }
            }
            repeat(100) { coach.undone.trySend(Unit) }
            repeat(100) { say(end) }
            tell(Event.Show(Screen.ABOUT))
            until { it.screen == Screen.ABOUT && it.training == Training.Idle && !it.isSwitching }
        }.also { file.delete() }
    }

    @Test fun `a training that is refused after an undo is told of`() = present {
        taught(List(8) { 0 })
        tell(Event.Undo)
        coach.undone.send(Unit)
        until { it.switched == Switch.UNDONE }
        tell(Event.Personalize)
        say(TrainEvent.Finished(Evaluation(1.0, 0.8), Evaluation(2.0, 0.5), stoppedEarly = false, adopted = null))
        until { it.comparison?.standing == Standing.REFUSED && it.training == Training.Idle }
        assertEquals(false, state.comparison?.isOld)
        assertEquals(Switch.UNDONE, state.switched)
    }

    @Test fun `a second tap on Undo waits for the first`() = present {
        taught(List(8) { 0 })
        tell(Event.Undo, Event.Undo, Event.Reset, Event.Show(Screen.ABOUT))
        until { it.screen == Screen.ABOUT && it.isSwitching }
        coach.undone.send(Unit)
        until { it.switched == Switch.UNDONE && !it.isSwitching }
        assertEquals(listOf("undo"), coach.calls)
    }
}
