package org.pocketune.app.core

import org.pocketune.trainer.TrainEvent

/** What changes the state. */
sealed interface Message

/** What the user does. */
sealed interface Event : Message {
    data class Show(val screen: Screen) : Event

    /** The app comes back after its process ended. */
    data class Return(val kept: Kept) : Event

    data class Choose(val label: Int) : Event
    data class Draw(val stroke: Stroke) : Event
    data object ClearDraft : Event
    data object Add : Event
    data class AddSymbol(val name: String) : Event

    /** Gives the user's symbol of class [label] another name. */
    data class RenameSymbol(val label: Int, val name: String) : Event
    data class Select(val drawing: Long?) : Event
    data object Delete : Event

    data object Personalize : Event
    data object Pause : Event
    data object Resume : Event
    data object Cancel : Event
    data class SetNightly(val on: Boolean) : Event

    data object Keep : Event
    data object Undo : Event
    data object Reset : Event

    data class Try(val stroke: Stroke) : Event
    data object ClearTrial : Event
    data object DismissProblem : Event
}

/** What comes of the work that events cause. */
sealed interface News : Message {
    data class Opened(val model: Model, val inUse: InUse) : News
    data class NotesRead(val notes: Notes, val nightly: Boolean) : News
    data class DeviceChanged(val facts: DeviceFacts) : News
    data class Trained(val event: TrainEvent) : News

    /** [learned]: the newest drawing that there was when the training began. [adopted]: the generation, if there is one. */
    data class Compared(val comparison: Comparison, val learned: Long, val adopted: Long?) : News

    /** The training is over, whatever came of it. */
    data object Ended : News

    /** Another model is in use; null: the newest again. */
    data class Switched(val switched: Switch?, val inUse: InUse) : News

    /** The models did not change places. */
    data object NotSwitched : News
    data class Recognised(val trial: Trial) : News
    data class Failed(val problem: Problem) : News
}
