package org.pocketune.trainer

import java.io.IOException

/**
 * What can go wrong, by what the user can do about it. The message is a plain English sentence with the details; an
 * app that speaks other languages picks its own by type.
 */
sealed class PocketuneException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** The program cannot be used. Install the app or copy the program again. */
sealed class ProgramException(message: String, cause: Throwable? = null) : PocketuneException(message, cause)

/** A byte of the program is missing or altered, or it is no Pocketune program at all. */
class DamagedProgramException(message: String, cause: Throwable? = null) : ProgramException(message, cause)

/** A good program of a format that this version does not know: update the app. */
class NewerProgramException(message: String) : ProgramException(message)

/** A saved state cannot be used. Nothing was changed by trying. */
sealed class StateException(message: String) : PocketuneException(message)

/** Nothing was saved yet. */
class NoStateException(message: String) : StateException(message)

/** A byte of the state is missing or altered, and no older generation is good. */
class DamagedStateException(message: String) : StateException(message)

/** A good state of another program. */
class ForeignStateException(message: String) : StateException(message)

/** A state of an older or newer format than the one that this version knows. */
class StateVersionException(message: String) : StateException(message)

/** The state was not written: the disk is full, or access is denied. The old state still stands. */
class StorageException(message: String, cause: IOException? = null) : PocketuneException(message, cause)

/** What was passed in does not fit the program: a missing input, a wrong size, NaN, a label out of range, too much. */
class InputException(message: String) : PocketuneException(message)

/** The trained numbers are not finite: restore or reset. They are never saved. */
class DivergedException(message: String) : PocketuneException(message)

/** The runtime does not take the program, or gave up while it ran. */
class RuntimeFailedException(message: String, cause: Throwable? = null) : PocketuneException(message, cause)

/** The trainer was closed. */
class ClosedException : PocketuneException("the trainer is closed: open a new one")

/** A training is running: cancel it, or wait for its end. */
class BusyException(message: String) : PocketuneException(message)
