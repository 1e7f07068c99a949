package org.pocketune.app.core

import org.pocketune.trainer.TrainEvent

/** The state after a message: the only place where states are made. */
fun UiState.after(message: Message): UiState = when (message) {
    is Event -> afterEvent(message)
    is News -> afterNews(message)
}

private fun UiState.afterEvent(event: Event): UiState = when (event) {
    is Event.Show -> copy(screen = event.screen, selected = null)
    is Event.Return -> copy(
        screen = event.kept.screen,
        chosen = event.kept.chosen,
        draft = event.kept.draft,
        trial = Trial(event.kept.trial, isCurrent = false),
    )
    is Event.Choose -> choose(event.label)
    is Event.Draw -> copy(draft = draft + listOf(event.stroke), selected = null)
    is Event.ClearDraft -> copy(draft = emptyList())
    is Event.Add -> add()
    is Event.AddSymbol -> addSymbol(event.name.trim())
    is Event.RenameSymbol -> renameSymbol(event.label, event.name.trim())
    is Event.Select -> copy(selected = event.drawing)
    is Event.Delete -> copy(notes = selected?.let(notes::without) ?: notes, selected = null)
    is Event.Personalize -> if (canPersonalize) copy(training = Training.Running(), problem = null) else this
    is Event.Cancel -> if (training is Training.Running) copy(training = Training.Ending) else this
    is Event.SetNightly -> copy(nightly = event.on)
    is Event.Keep -> copy(notes = notes.copy(comparison = notes.comparison?.copy(standing = Standing.KEPT)))
    is Event.Try -> copy(trial = trial.copy(strokes = trial.strokes + listOf(event.stroke), isCurrent = false))
    is Event.ClearTrial -> copy(trial = Trial())
    is Event.DismissProblem -> copy(problem = null)
    is Event.Undo, is Event.Reset ->
        if (model != null && training == Training.Idle) copy(isSwitching = true, problem = null) else this
    is Event.Pause, is Event.Resume -> this
}

/**
 * Chooses what the next drawing means, or gives the selected drawing another meaning. What was begun for another character
 * is wiped off: it would be taught as this one.
 */
private fun UiState.choose(label: Int): UiState {
    val begun = if (label == chosen) draft else emptyList()
    return if (selected == null) copy(chosen = label, draft = begun)
    else copy(notes = notes.relabelled(selected, label), chosen = label, draft = begun, selected = null)
}

private fun UiState.add(): UiState {
    val recipe = model?.description?.recipe ?: return this
    if (draft.isEmpty() || chosen !in labels.indices) return this
    return copy(notes = notes.plus(chosen, draft, recipe.heldOutEvery), draft = emptyList())
}

/** A name that there is already is chosen rather than added. */
private fun UiState.addSymbol(name: String): UiState = when {
    name.isEmpty() -> this
    name in labels -> choose(labels.indexOf(name))
    !hasSpareClass -> this
    else -> copy(notes = notes.copy(symbols = notes.symbols + name)).choose(labels.size)
}

/** A name that is empty or another class's changes nothing. */
private fun UiState.renameSymbol(label: Int, name: String): UiState {
    if (name.isEmpty() || name in labels || !isSymbol(label)) return this
    val symbols = notes.symbols.toMutableList().also { it[label - (labels.size - it.size)] = name }
    return copy(notes = notes.copy(symbols = symbols))
}

private fun UiState.afterNews(news: News): UiState = when (news) {
    is News.Opened -> copy(model = news.model, personal = news.inUse.personal).agreeing(news.inUse)
    is News.NotesRead -> copy(notes = news.notes, nightly = news.nightly)
    is News.DeviceChanged -> copy(device = news.facts)
    is News.Trained -> if (training is Training.Running) copy(training = training.after(news.event)) else this
    is News.Compared -> copy(
        notes = notes.copy(
            learned = news.learned,
            comparison = news.comparison,
            switched = if (news.comparison.standing == Standing.REFUSED) switched else null,
            generation = news.adopted ?: notes.generation,
        ),
        personal = personal || news.comparison.standing == Standing.OFFERED,
        screen = if (screen == Screen.PERSONALIZE) Screen.COMPARE else screen,
        trial = trial.copy(isCurrent = false),
    )
    is News.Ended -> copy(training = Training.Idle, trainings = trainings + 1)
    is News.Switched -> copy(
        notes = notes.copy(
            comparison = comparison?.copy(isOld = true),
            switched = news.switched,
            generation = news.inUse.generation ?: notes.generation,
        ),
        isSwitching = false,
        personal = news.inUse.personal,
        trial = trial.copy(isCurrent = false),
    )
    is News.NotSwitched -> copy(isSwitching = false)
    is News.Recognised -> if (news.trial.strokes == trial.strokes) copy(trial = news.trial) else this
    is News.Failed -> copy(problem = news.problem)
}

/**
 * What was noted may be about another state than the one that was found (the newest was lost, or the process ended before
 * it was noted) and about another program: keeps what agrees.
 */
private fun UiState.agreeing(inUse: InUse): UiState {
    val named = labels.indices.toSet()
    val agreed = when (inUse.generation) {
        null -> notes
        notes.generation -> notes.copy(
            comparison = notes.comparison?.run {
                copy(changes = changes.filter { named.containsAll(listOf(it.before, it.after, it.drawing.label)) })
            },
        )
        else -> notes.copy(
            comparison = null,
            switched = if (inUse.personal || inUse.generation == 0L) null else Switch.RESET,
            generation = inUse.generation,
        )
    }
    return copy(chosen = chosen.takeIf { it in named } ?: 0, notes = agreed)
}

private fun Training.Running.after(event: TrainEvent): Training = when (event) {
    is TrainEvent.Started -> Training.Running(event.resumedAt, event.steps, resumedAt = event.resumedAt)
    is TrainEvent.Step ->
        copy(step = event.step + 1, losses = losses + event.loss, millis = event.millis, paused = null)
    is TrainEvent.Paused -> copy(paused = event.reason)
    is TrainEvent.Resumed -> copy(paused = null)
    is TrainEvent.Skipped,
    is TrainEvent.Standstill,
    is TrainEvent.Stalled,
    is TrainEvent.Evaluated,
    is TrainEvent.Checkpointed -> this
    // What is adopted cannot be cancelled any more.
    is TrainEvent.Diverged,
    is TrainEvent.Finished -> Training.Ending
}
