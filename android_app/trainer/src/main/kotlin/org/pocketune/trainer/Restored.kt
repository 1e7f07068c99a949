package org.pocketune.trainer

/** What is taken over of a state of another program. */
enum class Adopt {
    /** The tensors that match by name and shape; the others are as built. */
    MATCHING,
}

/**
 * What was restored.
 *
 * @property lost why the newest state could not be used; null when it could.
 * @property unproven why it cannot be told that the state belongs to this program, against which nothing speaks; null
 *   when it can.
 * @property adopted the names of the tensors that were taken over.
 * @property left those of the program that are as built; none without [Adopt].
 * @property differences between the state's program and this one, in words.
 */
data class Restored(
    val generation: Long,
    val lost: String?,
    val unproven: String? = null,
    val adopted: List<String> = emptyList(),
    val left: List<String> = emptyList(),
    val differences: List<String> = emptyList(),
)
