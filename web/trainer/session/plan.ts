import type { Sample } from "../program/samples.ts";

/** The learning rate of step `step` of `steps`, from 0. */
export type LearningRate = (step: number, steps: number) => number;

/** From `peak` down to `floor` along half a cosine. */
export function cosine(peak: number, floor = 0): LearningRate {
  const [high, low] = [Math.fround(peak), Math.fround(floor)];
  return (step, steps) => low + (Math.fround(high - low) * (1 + Math.cos((Math.PI * step) / steps))) / 2;
}

/** A straight rise over some steps, then `rest`. */
export function warmUp(warmUp: number, rest: LearningRate): LearningRate {
  return (step, steps) => {
    const left = Math.max(1, steps - warmUp);
    return step < warmUp ? (rest(0, left) * (step + 1)) / (warmUp + 1) : rest(step - warmUp, left);
  };
}

/**
 * Leaves rows out of most epochs that lost little when they came last.
 *
 * All rows come in each epoch, from 0, whose number `revisit` (2) divides, and in the last; in others those do not that lost less than `below`
 * when they came last, before that step's update and without the row's weight. The order of the others stays, and batches
 * are filled with them. Nothing corrects for those left out. Steps keep the numbers, and rates, that they have if all come.
 * The program has to give the loss of each row: `row_losses="on"` of its build.
 */
export interface SkipLearned {
  readonly below: number;
  readonly revisit?: number;
}

/** How to train. */
export interface Plan {
  /** How often each sample is seen; 3. */
  readonly epochs?: number;
  /**
   * A number is the same for every step. None is the one that the optimizer was built with. None is taken beside a rate
   * that runs in the program (`manifest.runningRate`).
   */
  readonly learningRate?: number | LearningRate;
  /** Multiplies the learning rate, be it given, the optimizer's, or one that runs in the program; 1. */
  readonly rateScale?: number;
  /** A new order each epoch (the default), or always that of the list. */
  readonly shuffle?: boolean;
  /** Of the orders, a whole number; 0. The same seed, samples and plan give the same training, here and on the phone. */
  readonly seed?: number;
  /** Samples that came with the app, mixed in against forgetting: `share` of every epoch (0.5), drawn anew. */
  readonly replay?: { readonly samples: readonly Sample[]; readonly share?: number };
  /** Weigh each class alike, however many samples it has. */
  readonly balanceClasses?: boolean;
  /** Ends a training when the held-out loss has not fallen for `patience` epochs (2); the best epoch's state is kept. */
  readonly earlyStop?: { readonly patience?: number };
  /**
   * Steps between checkpoints of the unfinished training in the store; 100. 0 writes none. Where rows are skipped they are
   * written at least so far apart, behind epochs after which all rows come.
   */
  readonly checkpointEvery?: number;
  /** The number of the first epoch, so that trainings one after another have the orders of a single one; 0. */
  readonly firstEpoch?: number;
  /** After so many steps it ends, wherever it is; else after the epochs. */
  readonly steps?: number;
  /** Which rows do not come in most epochs; else all come. */
  readonly skip?: SkipLearned;
  /**
   * Whether each epoch but the first, by `firstEpoch`, begins with other channels drawn by the seed and the number of the epoch,
   * in programs of `Channels(..., redrawn=True)`; false.
   */
  readonly redraw?: boolean;
}

/** A plan with nothing left out. */
export interface WholePlan {
  readonly epochs: number;
  readonly learningRate: number | LearningRate | null;
  readonly rateScale: number;
  readonly shuffle: boolean;
  readonly seed: number;
  readonly replay: { readonly samples: readonly Sample[]; readonly share: number } | null;
  readonly balanceClasses: boolean;
  readonly earlyStop: { readonly patience: number } | null;
  readonly checkpointEvery: number;
  readonly firstEpoch: number;
  readonly steps: number | null;
  readonly skip: Required<SkipLearned> | null;
  readonly redraw: boolean;
}

export function whole(plan: Plan): WholePlan {
  return {
    epochs: plan.epochs ?? 3,
    learningRate: plan.learningRate ?? null,
    rateScale: plan.rateScale ?? 1,
    shuffle: plan.shuffle ?? true,
    seed: plan.seed ?? 0,
    replay: plan.replay ? { samples: plan.replay.samples, share: plan.replay.share ?? 0.5 } : null,
    balanceClasses: plan.balanceClasses ?? false,
    earlyStop: plan.earlyStop ? { patience: plan.earlyStop.patience ?? 2 } : null,
    checkpointEvery: plan.checkpointEvery ?? 100,
    firstEpoch: plan.firstEpoch ?? 0,
    steps: plan.steps ?? null,
    skip: plan.skip ? { below: Math.fround(plan.skip.below), revisit: plan.skip.revisit ?? 2 } : null,
    redraw: plan.redraw ?? false,
  };
}

/** What a training may take of the device. `storedBytes` is for all generations of the state together. */
export interface Limits {
  readonly samples: number;
  readonly storedBytes: number;
}

export const LIMITS: Limits = { samples: 100_000, storedBytes: 256 << 20 };
