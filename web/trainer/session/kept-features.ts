import type { Manifest } from "../manifest/manifest.ts";
import { ofRole } from "../manifest/manifest.ts";
import type { Sample } from "../program/samples.ts";
import { Batch, inBatches } from "./batches.ts";
import type { Between, Engine } from "./engine.ts";

const FEATURES = "features";

/**
 * What the frozen first layers make of rows: the same in every epoch, so it is computed once a row, and steps run on it,
 * where the program offers that.
 */
export class KeptFeatures {
  /** The signature that takes the rows of a step. */
  readonly stepName: string;
  private readonly isOffered: boolean;
  private readonly kept = new Map<Sample, Sample>();

  constructor(
    private readonly manifest: Manifest,
    private readonly engine: Engine,
  ) {
    this.isOffered = manifest.find(FEATURES) !== undefined;
    this.stepName = this.isOffered ? manifest.stepOnFeatures : manifest.stepName;
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
