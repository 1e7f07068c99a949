package org.pocketune.app.core

import kotlinx.serialization.Serializable
import org.pocketune.trainer.PauseReason
import org.pocketune.trainer.RuntimeReport
import org.pocketune.trainer.ThermalStatus

/** The five screens, in the order of the bar. */
enum class Screen { TEACH, PERSONALIZE, COMPARE, TRY, ABOUT }

/**
 * All that the app shows. Views draw it and nothing else.
 *
 * @property model what is known of the program; null until it is open, or when it cannot be used.
 * @property chosen the class that the next drawing will mean.
 * @property draft the strokes on the Teach screen's pad.
 * @property selected a drawing that the user wants to change.
 * @property trainings how many ended since the app began, however they did.
 * @property personal whether the model is not as it was built.
 * @property isSwitching the models are changing places just now; a training that is asked for meanwhile comes after it.
 */
data class UiState(
    val screen: Screen = Screen.TEACH,
    val model: Model? = null,
    val notes: Notes = Notes(),
    val chosen: Int = 0,
    val draft: List<Stroke> = emptyList(),
    val selected: Long? = null,
    val training: Training = Training.Idle,
    val trainings: Int = 0,
    val personal: Boolean = false,
    val isSwitching: Boolean = false,
    val trial: Trial = Trial(),
    val nightly: Boolean = false,
    val device: DeviceFacts = DeviceFacts(),
    val problem: Problem? = null,
) {
    /** Names of all classes: those of the program, then the user's symbols; none while no program is open. */
    val labels: List<String> get() = model?.run { description.labels + notes.symbols }.orEmpty()

    /** What the last training changed; null before the first, and while no program is open. */
    val comparison: Comparison? get() = notes.comparison.takeIf { model != null }

    /** What the user has done about the model since the last training; null when nothing. */
    val switched: Switch? get() = notes.switched.takeIf { model != null }

    /** Whether the program has a class left for one more symbol. */
    val hasSpareClass: Boolean get() = model != null && notes.symbols.size < model.description.spare

    /** Whether a class is one of the user's own. */
    fun isSymbol(label: Int): Boolean = model != null && label in model.description.labels.size until labels.size

    val heldOut: List<Drawing> get() = taught.filter { it.heldOut }
    val toLearn: List<Drawing> get() = taught.filterNot { it.heldOut }

    /** Without those of classes that this program does not have; they wait for one that does. */
    private val taught: List<Drawing> get() = notes.drawings.filter { it.label in labels.indices }

    /** How many more drawings a training needs at least; 0 when there are enough. */
    val missing: Int get() = maxOf(LEAST_TO_LEARN - toLearn.size, missingToJudge)

    /** How many more of one class until the first is kept aside. */
    private val missingToJudge: Int
        get() {
            if (heldOut.isNotEmpty()) return 0
            val most = taught.groupingBy { it.label }.eachCount().values.maxOrNull() ?: 0
            return maxOf(1, Notes.FIRST_HELD_OUT - most)
        }

    val canPersonalize: Boolean get() = model != null && training == Training.Idle && missing == 0

    companion object {
        const val LEAST_TO_LEARN = 6
    }
}

/**
 * An open program.
 *
 * @property answers of how many classes.
 * @property trained weights that training changes.
 * @property arenaBytes memory of one step; null when the compiler did not say.
 * @property layers names of the weights that train, and the share of each.
 * @property card what people are to know of it, by names as of a model card.
 */
data class Model(
    val description: Description,
    val name: String,
    val answers: Int,
    val trained: Long?,
    val fileBytes: Long,
    val stateBytes: Long,
    val arenaBytes: Long?,
    val optimizer: String,
    val layers: List<Pair<String, Double>>,
    val runtime: RuntimeReport,
    val card: Map<String, String> = emptyMap(),
)

sealed interface Training {
    data object Idle : Training

    /** The user cancelled it and the step that runs must end first, or it is done and is being compared. */
    data object Ending : Training

    /**
     * @property step of [steps] done, over all epochs.
     * @property losses one a step.
     * @property millis of the last step.
     * @property paused why it waits; null when it runs.
     */
    data class Running(
        val step: Int = 0,
        val steps: Int = 0,
        val losses: List<Float> = emptyList(),
        val millis: Double? = null,
        val paused: PauseReason? = null,
        val resumedAt: Int = 0,
    ) : Training
}

/** What came of a training: a model that the user may keep, has kept, or one that was worse and was not taken. */
enum class Standing { OFFERED, KEPT, REFUSED }

/** Which model took the place of the user's newest. */
enum class Switch { UNDONE, RESET }

/**
 * What the last training changed.
 *
 * @property before share of right answers on [heldOut] drawings.
 * @property isOld the user has changed models since.
 */
@Serializable
data class Comparison(
    val before: Double,
    val after: Double,
    val heldOut: Int,
    val changes: List<Change>,
    val standing: Standing,
    val isOld: Boolean = false,
)

/** A drawing whose answer changed. */
@Serializable
data class Change(val drawing: Drawing, val before: Int, val after: Int)

/**
 * The Try screen: a drawing, and each model's most likely answers.
 *
 * @property isCurrent whether the answers are to all of the drawing, by the models as they are now.
 */
data class Trial(
    val strokes: List<Stroke> = emptyList(),
    val original: List<Answer> = emptyList(),
    val personal: List<Answer> = emptyList(),
    val isCurrent: Boolean = true,
)

/** A class and how sure a model is of it, 0 to 1. */
data class Answer(val label: Int, val sureness: Float)

/** Heat, charge. [battery] in percent; null where the device does not say. */
data class DeviceFacts(
    val thermal: ThermalStatus? = null,
    val battery: Int? = null,
    val charging: Boolean = false,
)

/** What went wrong, by what the user can do about it. */
enum class Problem {
    PROGRAM_DAMAGED,
    PROGRAM_NEWER,
    STATE_DAMAGED,
    STATE_OLDER,
    STATE_FOREIGN,
    DISK_FULL,
    DIVERGED,
    INPUT,
    RUNTIME,
    DRAWINGS_DAMAGED,
}

/** What outlives the process while the app is in the background, besides what is on the disk. */
@Serializable
data class Kept(
    val screen: Screen,
    val chosen: Int,
    val draft: List<Stroke>,
    val trial: List<Stroke>,
)
