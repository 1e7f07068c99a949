/** What can go wrong, by what the user can do about it. The message is a plain English sentence with the details. */
export class PocketuneError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** The program cannot be used: load it again. */
export class ProgramError extends PocketuneError {}

/** A byte of the program is missing or altered, or it is no Pocketune program at all. */
export class DamagedProgramError extends ProgramError {}

/** A good program of a format that this version does not know: update the page. */
export class NewerProgramError extends ProgramError {}

/** A saved state cannot be used. Nothing was changed by trying. */
export class StateError extends PocketuneError {}

/** Nothing was saved yet. */
export class NoStateError extends StateError {}

/** A byte of the state is missing or altered, and no older generation is good. */
export class DamagedStateError extends StateError {}

/** A good state of another program. */
export class ForeignStateError extends StateError {}

/** A state of an older or newer format than the one that this version knows. */
export class StateVersionError extends StateError {}

/** The state was not written: the storage is full, or access is denied. The old state still stands. */
export class StorageError extends PocketuneError {}

/** A replay memory cannot be used: it is damaged, of another program or version, or was begun with other numbers. */
export class ReplayError extends PocketuneError {}

/** What was passed in does not fit the program: a missing input, a wrong size, NaN, a label out of range, too much. */
export class InputError extends PocketuneError {}

/** The trained numbers are not finite: restore or reset. They are never saved. */
export class DivergedError extends PocketuneError {}

/** The runtime does not take the program, or gave up while it ran. */
export class RuntimeFailedError extends PocketuneError {}

/** The trainer was closed. */
export class ClosedError extends PocketuneError {
  constructor() {
    super("the trainer is closed: open a new one");
  }
}

/** A training is running, or another tab has the store: cancel it, wait for its end, or close the other tab. */
export class BusyError extends PocketuneError {}

/** The message of anything that was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
