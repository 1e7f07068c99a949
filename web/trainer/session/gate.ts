import { BY_PERSON, type PauseReason, type TrainEvent } from "./events.ts";

/** Asked between steps: why a training must wait now; null when nothing speaks against the next step. */
export type Guard = () => PauseReason | null;

const POLL_MILLIS = 1000;

/** Where a training waits between two steps, for the user or for the device. */
export class Gate {
  private isHeld = false;
  private wake: () => void = () => undefined;

  constructor(private readonly guard: Guard = () => null) {}

  hold(): void {
    this.isHeld = true;
    this.wake();
  }

  release(): void {
    this.isHeld = false;
    this.wake();
  }

  /** Whoever waits looks again. */
  stir(): void {
    this.wake();
  }

  /** Ends when nothing speaks against the next step; says why it waits, once for each reason. */
  async *pass(checkGoesOn: () => void): AsyncGenerator<TrainEvent, void> {
    let told: PauseReason | null = null;
    for (;;) {
      checkGoesOn();
      const reason = this.isHeld ? BY_PERSON : this.guard();
      if (reason === null) break;
      if (reason !== told) yield { kind: "paused", reason };
      told = reason;
      await this.waited();
    }
    if (told !== null) yield { kind: "resumed" };
  }

  /** A release by the user ends the wait at once; the device has to be asked. */
  private waited(): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, POLL_MILLIS);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
