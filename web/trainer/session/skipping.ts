import type { SkipLearned } from "./plan.ts";

/** The loss of each row of a training when it came last, and which rows do not come by it (`SkipLearned`). */
export class Skipping {
  /** How many rows of the present epoch do not come. */
  leftOut = 0;
  private readonly losses: Float32Array;

  /** `skip.below` is a float32, as losses are; `last` is the number of the last epoch. */
  constructor(
    private readonly skip: Required<SkipLearned>,
    rows: number,
    private readonly last: number,
  ) {
    this.losses = new Float32Array(rows).fill(Number.NaN);
  }

  /** Of the places of an epoch's rows those that come; rows that never came do. */
  coming(epoch: number, places: readonly number[]): readonly number[] {
    const all = this.comeAllIn(epoch);
    const coming = places.filter((place) => all || !((this.losses[place] ?? Number.NaN) < this.skip.below));
    this.leftOut = places.length - coming.length;
    return coming;
  }

  /** Whether all rows come in an epoch. */
  comeAllIn(epoch: number): boolean {
    return epoch % this.skip.revisit === 0 || epoch === this.last;
  }

  /** Takes note of the losses that rows had in a step. */
  see(places: readonly number[], found: Float32Array): void {
    for (const [i, place] of places.entries()) this.losses[place] = found[i] ?? Number.NaN;
  }
}
