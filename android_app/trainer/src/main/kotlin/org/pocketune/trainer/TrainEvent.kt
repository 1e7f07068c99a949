package org.pocketune.trainer

/** What [Trainer.fit] tells, in order. The last event is [Finished] or [Diverged]. */
sealed interface TrainEvent {
    /**
     * Everything is checked, the first step comes next.
     *
     * @property steps of all epochs.
     * @property resumedAt how many of them an interrupted training of the same samples and plan had done.
     * @property before on the held-out samples; null without any.
     */
    data class Started(
        val samples: Int,
        val heldOut: Int,
        val epochs: Int,
        val steps: Int,
        val resumedAt: Int,
        val before: Evaluation?,
    ) : TrainEvent

    /** An epoch, from 0, begins in which [rows] of its [of] rows do not come, as they lost little when they came last. */
    data class Skipped(val epoch: Int, val rows: Int, val of: Int) : TrainEvent

    /**
     * One step is done.
     *
     * @property epoch from 0.
     * @property step from 0, over all epochs; where rows are skipped each epoch begins with the number that it would have
     *   if all came.
     * @property loss before the step's update.
     * @property millis how long the step took.
     * @property weight of its rows, added up: the loss of an epoch in which all rows come is the mean by it.
     */
    data class Step(val epoch: Int, val step: Int, val loss: Float, val millis: Double, val weight: Double = 1.0) : TrainEvent

    /** From [step] on the learning rate is 0, so that no step changes a weight any more; [why] in plain words. */
    data class Standstill(val step: Int, val why: String) : TrainEvent

    /** A step has been running for longer than the plan's `stalledMillis`; it cannot be interrupted. */
    data class Stalled(val step: Int, val millis: Long) : TrainEvent

    /** After an epoch, on the held-out samples. [isBest]: no earlier epoch had a lower loss. */
    data class Evaluated(val epoch: Int, val evaluation: Evaluation, val isBest: Boolean) : TrainEvent

    /** The unfinished training is on the disk: [steps] of it survive the end of the process. */
    data class Checkpointed(val steps: Int) : TrainEvent

    /** Nothing runs until the reason is gone. */
    data class Paused(val reason: PauseReason) : TrainEvent

    /** It goes on. */
    data object Resumed : TrainEvent

    /**
     * The numbers of this step are not finite, or too large for the accelerator. The state is again what it was before the
     * training.
     *
     * @property loss NaN where it is not the loss.
     * @property why in plain words; operations that can be infinite are named, with their layers.
     */
    data class Diverged(val epoch: Int, val step: Int, val loss: Float, val why: String) : TrainEvent

    /**
     * The end.
     *
     * @property before on the held-out samples, null without any.
     * @property after likewise, of the trained state, whether adopted or not.
     * @property stoppedEarly the held-out loss no longer fell.
     * @property adopted generation of the saved state; null when accuracy on the held-out samples fell: then the state
     *   is again what it was before.
     */
    data class Finished(
        val before: Evaluation?,
        val after: Evaluation?,
        val stoppedEarly: Boolean,
        val adopted: Long?,
    ) : TrainEvent
}
