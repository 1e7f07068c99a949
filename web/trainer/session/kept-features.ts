import { FEATURES, type Manifest, ON_FEATURES, ofRole } from "../manifest/manifest.ts";
import type { Sample } from "../program/samples.ts";
import { Batch, inBatches } from "./batches.ts";
import type { Between, Engine } from "./engine.ts";

/**
 * What the frozen first layers make of rows: the same in every epoch, so it is computed once a row, and steps, and the
 * evaluation of held-out rows, run on it where the program offers that.
 */
export class KeptFeatures {
  /** The signature that takes the rows of a step. */
  readonly stepName: string;
  /** The signature that takes held-out rows. */
  readonly evaluateName: string;
  private readonly isOffered: boolean;
  private readonly isJudging: boolean;
  private readonly kept = new Map<Sample, Sample>();

  constructor(
    private readonly manifest: Manifest,
    private readonly engine: Engine,
  ) {
    this.isOffered = manifest.find(FEATURES) !== undefined;
    this.stepName = this.isOffered ? manifest.stepOnFeatures : manifest.stepName;
    this.isJudging = this.isOffered && manifest.find(`evaluate${ON_FEATURES}`) !== undefined;
    this.evaluateName = this.isJudging ? `evaluate${ON_FEATURES}` : "evaluate";
  }

  /** The calls of the runtime that compute it for all that count among some rows. */
  calls(samples: readonly Sample[]): Batch[] {
    if (!this.isOffered) return [];
    const [input] = ofRole(this.manifest.signature(FEATURES).inputs, "input");
    return inBatches(samples, input?.shape[0] ?? 1);
  }

  /** Computes it for the rows of one call. */
  async keep(batch: Batch, between: Between): Promise<void> {
    const features = await this.engine.infer([[FEATURES, batch]], between);
    for (const [i, row] of batch.rows.entries()) this.kept.set(row, { ...row, inputs: features[i] ?? {} });
  }

  /** Held-out rows as what evaluates takes them; of each it is computed once. */
  async judged(heldOut: readonly Sample[], between: Between): Promise<Batch[]> {
    if (this.isJudging) {
      const left = heldOut.filter((sample) => !this.kept.has(sample));
      for (const batch of this.calls(left)) await this.keep(batch, between);
    }
    const batches = inBatches(heldOut, this.manifest.microBatch);
    return this.isJudging ? batches.map((batch) => this.of(batch)) : batches;
  }

  /** A batch as the step takes it. */
  of(batch: Batch): Batch {
    return this.isOffered
      ? new Batch(
          batch.rows.map((row) => this.kept.get(row) ?? row),
          batch.weights,
        )
      : batch;
  }
}
