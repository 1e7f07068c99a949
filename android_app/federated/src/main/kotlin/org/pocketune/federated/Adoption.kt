package org.pocketune.federated

import org.pocketune.trainer.Trainer
import org.pocketune.trainer.putTensors
import org.pocketune.trainer.tensors
import java.io.File

/** What becomes of a user's state when others have trained the same model. */
enum class Take {
    /** Nothing changes. */
    MINE,

    /** All that trains is as the server sent it. */
    SHARED,

    /** The base is as the server sent it, what is the user's own stays: FedPer. */
    BOTH,
}

/**
 * Takes a shared state over into the user's own, and saves it as a generation; `Trainer.rollback` undoes it. The optimizer
 * begins anew. The names of classes stay with a last layer that has room for them.
 *
 * @param shared [Participant.shared].
 * @param isOwn with [Take.BOTH], whether a tensor is the user's own, by the model's name: `{ it.startsWith("head/") }`.
 * @return the generation; null where nothing changed.
 */
suspend fun Trainer.adopt(shared: File, take: Take, isOwn: (String) -> Boolean = { false }): Long? {
    if (take == Take.MINE) return null
    val mine = tensors()
    try {
        restore(shared)
        if (take == Take.BOTH) {
            val own = program.manifest.stateTensors.filter { !it.slot && isOwn(it.called) }.map { it.tensor } +
                listOfNotNull(namesAtHome(program.manifest.head, isOwn))
            putTensors(mine.filterKeys { it in own })
        }
        return save()
    } catch (error: Throwable) {
        putTensors(mine)
        throw error
    }
}
