package org.pocketune.app

import java.io.File
import kotlinx.coroutines.channels.Channel
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.pocketune.app.core.Change
import org.pocketune.app.core.Event
import org.pocketune.app.core.Kept
import org.pocketune.app.core.Notebook
import org.pocketune.app.core.Notes
import org.pocketune.app.core.Problem
import org.pocketune.app.core.Screen
import org.pocketune.app.core.Standing
import org.pocketune.app.core.Switch
import org.pocketune.app.core.Training
import org.pocketune.trainer.DamagedProgramException
import org.pocketune.trainer.Evaluation
import org.pocketune.trainer.PauseReason
import org.pocketune.trainer.RuntimeFailedException
import org.pocketune.trainer.StorageException
import org.pocketune.trainer.TrainEvent

class PresenterTest : PresenterScene() {
    @Test fun `teaching fills the class and keeps each fourth drawing aside`() = present {
        taught(List(8) { 7 })
        assertEquals(listOf(false, false, true, false, false, false, true, false), state.notes.drawings.map { it.heldOut })
        assertTrue(state.draft.isEmpty())
        until { Notebook(file).run { file.exists() && read() == it.notes } }
    }

    @Test fun `a drawing is given another meaning, then deleted`() = present {
        taught(listOf(3))
        val id = state.notes.drawings.single().id
        tell(Event.Select(id), Event.Choose(5))
        until { it.notes.drawings.single().label == 5 && it.selected == null }
        tell(Event.Select(id), Event.Delete)
        until { it.notes.drawings.isEmpty() }
    }

    @Test fun `a drawing is not added to a character that is chosen after it was begun`() = present {
        tell(Event.Choose(3), Event.Draw(stroke), Event.Choose(3))
        until { it.chosen == 3 && it.draft.isNotEmpty() }
        tell(Event.Choose(5), Event.Add)
        until { it.chosen == 5 && it.draft.isEmpty() }
        assertTrue(state.notes.drawings.isEmpty())
        tell(Event.Draw(stroke), Event.Add)
        until { it.notes.drawings.singleOrNull()?.label == 5 }
    }

    @Test fun `symbols take the spare classes, each name once, and no more than there are`() = present {
        for (name in listOf("★", " A ", "★", "", "3")) tell(Event.AddSymbol(name))
        until { it.chosen == 3 }
        assertEquals(listOf("★", "A"), state.notes.symbols)
        for (name in 'B'..'Z') tell(Event.AddSymbol("$name"))
        tell(Event.Choose(0))
        until { it.chosen == 0 && it.notes.symbols.size > 2 }
        assertEquals(state.model!!.description.spare, state.notes.symbols.size)
        assertFalse(state.hasSpareClass)
    }

    @Test fun `nothing is trained before there is enough`() = present {
        taught(listOf(1, 1))
        tell(Event.Personalize, Event.Show(Screen.PERSONALIZE))
        until { it.screen == Screen.PERSONALIZE }
        assertEquals(Training.Idle, state.training)
        assertEquals(4, state.missing)
    }

    @Test fun `it is told how many drawings are missing until one can be kept aside`() = present {
        taught((0..9).toList())
        assertEquals(2, state.missing)
        tell(Event.Choose(4), Event.Draw(stroke), Event.Add)
        until { it.notes.drawings.size == 11 }
        assertEquals(1, state.missing)
        tell(Event.Draw(stroke), Event.Add)
        until { it.notes.drawings.size == 12 }
        assertEquals(0, state.missing)
    }

    @Test fun `a training runs, pauses, ends, and is compared`() = present {
        taught(List(8) { 0 } + List(4) { 1 })
        tell(Event.Show(Screen.PERSONALIZE), Event.Personalize)
        until { it.training is Training.Running }
        say(TrainEvent.Started(9, 3, 1, 2, 0, null), TrainEvent.Step(0, 0, 2f, 1.5))
        until { (it.training as Training.Running).losses == listOf(2f) }
        assertEquals(9 to 3, coach.learned.size to coach.judged.size)
        tell(Event.Pause)
        say(TrainEvent.Paused(PauseReason.Person))
        until { (it.training as Training.Running).paused == PauseReason.Person }
        tell(Event.Resume)
        coach.answer = 1
        say(TrainEvent.Resumed, TrainEvent.Step(0, 1, 1f, 1.5))
        say(TrainEvent.Finished(Evaluation(2.0, 0.25), Evaluation(1.0, 0.75), stoppedEarly = false, adopted = 1))
        until { it.training == Training.Idle && it.comparison != null }
        assertEquals(listOf("resume", "pause", "resume"), coach.calls)
        assertEquals(Screen.COMPARE, state.screen)
        assertEquals(Standing.OFFERED, state.comparison?.standing)
        assertEquals(listOf(0 to 1, 0 to 1, 0 to 1), state.comparison?.changes?.map { it.before to it.after })
        assertFalse(state.notes.hasNew)
        tell(Event.Undo)
        coach.undone.send(Unit)
        until { it.switched == Switch.UNDONE && !it.personal }
        tell(Event.Undo)
        coach.undone.send(Unit)
        until { it.switched == null && !it.isSwitching }
        tell(Event.Keep)
        until { it.comparison?.standing == Standing.KEPT }
        tell(Event.Undo)
        coach.undone.send(Unit)
        until { it.switched == Switch.UNDONE }
        tell(Event.Undo)
        coach.undone.send(Unit)
        until { it.switched == null && !it.isSwitching }
        assertEquals(Standing.KEPT, state.comparison?.standing)
    }

    @Test fun `a model that became worse is refused`() = present {
        taught(List(8) { 0 })
        tell(Event.Personalize)
        say(TrainEvent.Finished(Evaluation(1.0, 0.8), Evaluation(2.0, 0.5), stoppedEarly = false, adopted = null))
        until { it.comparison?.standing == Standing.REFUSED }
        assertFalse(state.personal)
    }

    @Test fun `cancelling stops at once and forgets the half-done`() = present {
        taught(List(8) { 0 })
        tell(Event.Personalize)
        until { it.training is Training.Running }
        tell(Event.Cancel)
        until { it.training == Training.Idle }
        tell(Event.SetNightly(true))
        until { it.nightly && coach.calls == listOf("resume", "forget") }
        assertEquals(null, state.problem)
    }

    @Test fun `what was adopted cannot be cancelled any more`() = present {
        taught(List(8) { 0 })
        tell(Event.Personalize)
        until { it.training is Training.Running }
        coach.thinking = Channel(Channel.UNLIMITED)
        say(TrainEvent.Finished(Evaluation(2.0, 0.25), Evaluation(1.0, 0.75), stoppedEarly = false, adopted = 1))
        until { it.training == Training.Ending }
        tell(Event.Cancel, Event.Show(Screen.ABOUT))
        until { it.screen == Screen.ABOUT }
        coach.thinking?.close()
        until { it.training == Training.Idle && it.comparison != null }
        assertTrue(state.personal)
        assertFalse("forget" in coach.calls)
    }

    @Test fun `a pause that came too late does not hold the next training`() = present {
        taught(List(8) { 0 })
        tell(Event.Pause, Event.Personalize)
        until { it.training is Training.Running }
        assertEquals(listOf("resume"), coach.calls)
    }

    @Test fun `what is taught during a training is new after it`() = present {
        taught(List(8) { 0 })
        tell(Event.Personalize)
        until { it.training is Training.Running }
        tell(Event.Draw(stroke), Event.Add)
        until { it.notes.drawings.size == 9 }
        say(TrainEvent.Finished(Evaluation(2.0, 0.25), Evaluation(1.0, 0.75), stoppedEarly = false, adopted = 1))
        until { it.training == Training.Idle && it.comparison != null }
        assertTrue(state.notes.hasNew)
    }

    @Test fun `what came of a training is noted, without drawings that were deleted since`() {
        present {
            taught(List(8) { 0 })
            tell(Event.Personalize)
            until { it.training is Training.Running }
            coach.answer = 1
            say(TrainEvent.Finished(Evaluation(2.0, 0.25), Evaluation(1.0, 0.75), stoppedEarly = false, adopted = 1))
            until { it.training == Training.Idle && it.comparison != null }
            tell(Event.Select(state.comparison!!.changes[0].drawing.id), Event.Delete)
            until { it.notes.drawings.size == 7 }
        }
        val comparison = checkNotNull(Notebook(file).read().comparison)
        assertEquals(0.75, comparison.after, 0.0)
        assertEquals(1, comparison.changes.size)
        // A program with fewer classes than the one of the notes.
        val wild = comparison.copy(changes = listOf(comparison.changes[0].copy(after = 99)))
        Notebook(file).write(Notebook(file).read().copy(comparison = wild))
        present(FakeCoach(generation = 1)) {
            until { it.comparison?.changes == emptyList<Change>() && it.comparison?.after == 0.75 }
        }
        // A state that this was not about, as after a loss.
        present(FakeCoach(generation = 2)) {
            until { it.notes.generation == 2L }
            assertEquals(null, state.comparison)
        }
    }

    @Test fun `drawings that are deleted and written anew keep the share that is kept aside`() {
        var notes = Notes()
        repeat(8) { notes = notes.plus(0, listOf(stroke), 4) }
        repeat(20) { notes = notes.without(notes.drawings.first { !it.heldOut }.id).plus(0, listOf(stroke), 4) }
        assertEquals(2, notes.drawings.count { it.heldOut })
        notes.drawings.filter { it.heldOut }.forEach { notes = notes.without(it.id) }
        repeat(2) { notes = notes.plus(0, listOf(stroke), 4) }
        assertEquals(2, notes.drawings.count { it.heldOut })
    }

    @Test fun `a drawing becomes one of a new symbol`() = present {
        taught(listOf(3))
        tell(Event.Select(state.notes.drawings.single().id), Event.AddSymbol("★"))
        until { it.notes.drawings.single().label == 10 && it.selected == null }
    }

    @Test fun `a symbol gets another name and keeps its drawings`() = present {
        tell(Event.AddSymbol("A"), Event.AddSymbol("B"), Event.Draw(stroke), Event.Add)
        until { it.notes.drawings.size == 1 && it.notes.symbols.size == 2 }
        for ((label, name) in listOf(11 to " ★ ", 10 to "★", 10 to " ", 3 to "C", 12 to "D")) tell(Event.RenameSymbol(label, name))
        tell(Event.Show(Screen.ABOUT))
        until { it.screen == Screen.ABOUT }
        assertEquals(listOf("A", "★"), state.notes.symbols)
        assertEquals(11, state.notes.drawings.single().label)
    }

    @Test fun `drawings of classes that this program does not have are left alone`() {
        var notes = Notes()
        repeat(8) { notes = notes.plus(3, listOf(stroke), 4) }
        Notebook(file).write(notes.plus(15, listOf(stroke), 4))
        present {
            until { it.notes.drawings.size == 9 }
            tell(Event.Return(Kept(Screen.TEACH, 15, listOf(stroke), emptyList())), Event.Add, Event.Personalize)
            until { it.training is Training.Running }
            say(TrainEvent.Step(0, 0, 1f, 1.0))
            until { (it.training as Training.Running).losses.isNotEmpty() }
            assertEquals(setOf(3), (coach.learned + coach.judged).map { it.label }.toSet())
            assertEquals(9, state.notes.drawings.size)
        }
    }

    @Test fun `what goes wrong in a training becomes a sentence, and the next training works`() = present {
        taught(List(8) { 0 })
        for ((error, problem) in listOf(
            RuntimeFailedException("interpreter") to Problem.RUNTIME,
            StorageException("full") to Problem.DISK_FULL,
        )) {
            coach.failure = error
            tell(Event.Personalize)
            say(TrainEvent.Step(0, 0, 1f, 1.0))
            until { it.training == Training.Idle && it.problem == problem }
        }
        coach.failure = null
        tell(Event.Personalize)
        say(TrainEvent.Diverged(0, 0, Float.NaN, "the loss is NaN"))
        until { it.training == Training.Idle && it.problem == Problem.DIVERGED }
        tell(Event.DismissProblem)
        until { it.problem == null }
    }

    @Test fun `a damaged program is told of, and teaching waits`() =
        present(FakeCoach(broken = DamagedProgramException("flipped")), opens = false) {
            until { it.problem == Problem.PROGRAM_DAMAGED }
            tell(Event.Draw(stroke), Event.Add, Event.AddSymbol("★"), Event.Show(Screen.ABOUT))
            until { it.screen == Screen.ABOUT }
            assertEquals(1, state.draft.size)
            tell(Event.Keep, Event.Undo, Event.Show(Screen.COMPARE))
            until { it.screen == Screen.COMPARE }
            assertFalse(state.isSwitching)
            assertEquals("symbols have no class of their own before the digits are known", emptyList<String>(), state.labels)
        }

    @Test fun `damaged drawings are put aside and the app goes on`() {
        for (text in listOf("{\"id\":1,", "{\"id\":1,\"label\":1,\"strokes\":[],\"heldOut\":false}]}")) {
            file.writeText("{\"drawings\":[$text")
            present {
                until { it.problem == Problem.DRAWINGS_DAMAGED && it.model != null }
                taught(listOf(2))
                until { file.exists() }
                assertTrue(File(folder.root, "drawings.json.damaged").delete())
            }
        }
    }

    @Test fun `drawings that cannot be written are told of`() = present {
        File(folder.root, "drawings.json.partial").mkdirs()
        File(folder.root, "drawings.json.partial/in the way").createNewFile()
        taught(listOf(2))
        until { it.problem == Problem.DISK_FULL }
        assertEquals(1, state.notes.drawings.size)
    }

    @Test fun `what the window kept comes back`() = present {
        tell(Event.Return(Kept(Screen.TRY, 4, listOf(stroke), listOf(stroke, stroke))))
        until { it.screen == Screen.TRY && it.trial.isCurrent && it.trial.personal.isNotEmpty() }
        assertEquals(listOf(stroke), state.draft)
        assertEquals(4, state.chosen)
    }

    @Test fun `notes come back from the disk`() {
        val notes = Notes(symbols = listOf("★")).plus(10, listOf(stroke), 4)
        Notebook(file).write(notes)
        present { until { it.notes == notes } }
    }
}
