/** What can go wrong between a client and its server; the message is a sentence for the page's log. */
export class FederatedError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** What the server asks is not done: its message, arrays or plan are not what this program, or its owner, takes. */
export class RefusedRoundError extends FederatedError {}

/** The round is over at the server: it is left as it is. */
export class EndedRoundError extends FederatedError {}

/** The SuperLink does not answer, or refuses this client. */
export class LostServerError extends FederatedError {}

/** The SuperLink does not know this node, or not its signature: it began anew, or one of the clocks is wrong. */
export class UnknownNodeError extends LostServerError {}
