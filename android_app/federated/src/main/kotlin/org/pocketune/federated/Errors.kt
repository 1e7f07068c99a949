package org.pocketune.federated

/** What can go wrong between a client and its server; the message is a sentence for the app's log. */
sealed class FederatedException(message: String, cause: Throwable? = null) : Exception(message, cause)

/** What the server asks is not done: its message, arrays or plan are not what this program, or its owner, takes. */
open class RefusedRoundException(message: String) : FederatedException(message)

/** The round is over at the server: it is left as it is. */
class EndedRoundException(message: String) : FederatedException(message)

/** The SuperLink does not answer, or refuses this client. */
open class LostServerException(message: String, cause: Throwable? = null) : FederatedException(message, cause)

/** The SuperLink does not know this node, or not its signature: it began anew, or one of the clocks is wrong. */
class UnknownNodeException(message: String) : LostServerException(message)
