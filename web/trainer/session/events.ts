import type { Evaluation } from "../program/samples.ts";

/** Why a training waits: the user asked for it, or what the guard says. */
export type PauseReason = string;

/** The user called `pause`. */
export const BY_PERSON: PauseReason = "person";

/** What `fit` tells, in order. The last event is `finished` or `diverged`. */
export type TrainEvent =
  /** Everything is checked, the first step comes next. `resumedAt`: how many steps an interrupted training had done. */
  | {
      readonly kind: "started";
      readonly samples: number;
      readonly heldOut: number;
      readonly epochs: number;
      readonly steps: number;
      readonly resumedAt: number;
      readonly before: Evaluation | null;
    }
  /** An epoch, from 0, begins in which `rows` of its `of` rows do not come, as they lost little when they came last. */
  | { readonly kind: "skipped"; readonly epoch: number; readonly rows: number; readonly of: number }
  /**
   * One step is done; both numbers from 0, over all epochs; where rows are skipped each epoch begins with the number that it
   * would have if all came. `loss`: before its update. `weight`: of its rows, added up; the loss of an
   * epoch in which all rows come is the mean by it.
   */
  | {
      readonly kind: "step";
      readonly epoch: number;
      readonly step: number;
      readonly loss: number;
      readonly millis: number;
      readonly weight: number;
    }
  /** From this step on the learning rate is 0, so that no step changes a weight any more; `why` in plain words. */
  | { readonly kind: "standstill"; readonly step: number; readonly why: string }
  /** After an epoch, on the held-out samples. `isBest`: no earlier epoch had a lower loss. */
  | { readonly kind: "evaluated"; readonly epoch: number; readonly evaluation: Evaluation; readonly isBest: boolean }
  /** The unfinished training is in the store: so many steps of it survive the end of the tab. */
  | { readonly kind: "checkpointed"; readonly steps: number }
  /** Nothing runs until the reason is gone. */
  | { readonly kind: "paused"; readonly reason: PauseReason }
  | { readonly kind: "resumed" }
  /**
   * The numbers of this step are not finite. The state is again what it was before the training. `loss` is NaN where it is
   * not the loss; `why` in plain words: operations that can be infinite are named, with their layers.
   */
  | {
      readonly kind: "diverged";
      readonly epoch: number;
      readonly step: number;
      readonly loss: number;
      readonly why: string;
    }
  /**
   * The end. `adopted`: generation of the saved state; null when accuracy on the held-out samples fell: then the state
   * is again what it was before.
   */
  | {
      readonly kind: "finished";
      readonly before: Evaluation | null;
      readonly after: Evaluation | null;
      readonly stoppedEarly: boolean;
      readonly adopted: number | null;
    };
