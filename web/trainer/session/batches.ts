import { InputError } from "../errors.ts";
import type { Manifest } from "../manifest/manifest.ts";
import { TARGET } from "../manifest/manifest.ts";
import { type Row, type Sample, weightOf } from "../program/samples.ts";
import type { WholePlan } from "./plan.ts";
import { Random, shuffled } from "./random.ts";

/** Rows of one step or of one call, at most as many as that takes, and how much each counts. */
export class Batch {
  readonly weight: number;

  constructor(
    readonly rows: readonly Sample[],
    readonly weights: readonly number[],
  ) {
    this.weight = sum(weights);
  }

  /** The rows by `size`, the last ones fewer, each with its share of the weight of all. */
  shares(size: number): Batch[] {
    return chunked(
      this.rows.map((row, i): [Sample, number] => [row, Math.fround((this.weights[i] ?? 0) / this.weight)]),
      size,
    ).map(
      (part) =>
        new Batch(
          part.map(([row]) => row),
          part.map(([, share]) => share),
        ),
    );
  }
}

/** Rows in their order, a batch at a time. Rows of weight 0 are left out. */
export function inBatches(
  samples: readonly Sample[],
  size: number,
  weight: (sample: Sample) => number = weightOf,
): Batch[] {
  const counted = samples.filter((sample) => weightOf(sample) > 0);
  return chunked(counted, size).map((rows) => new Batch(rows, rows.map(weight)));
}

/** Rows in their order by the signatures that infer them: the largest for whole calls, then what just holds the rest. */
export function byInference(rows: readonly Row[], manifest: Manifest): [string, Batch][] {
  const { infers } = manifest;
  // Rows that influence each other are computed as many as they are, or as `infer` takes them.
  const anyNumber = (manifest.infer.mixing ?? null) === null || infers.has(rows.length);
  const known = [...infers].filter(([, name]) => anyNumber || name === "infer");
  const most = known.at(-1)?.[0] ?? 1;
  return inBatches(
    rows.map((inputs) => ({ inputs, targets: {} })),
    most,
  ).map((batch) => {
    const just = known.find(([size]) => size >= batch.rows.length);
    return [just?.[1] ?? "infer", batch];
  });
}

const EPOCHS_APART = 1_000_003n;

/** What each epoch of a training sees: the samples and a new draw of the replayed ones, in an order of the seed's. */
export class Curriculum {
  /** How many rows an epoch sees. */
  readonly rows: number;
  /** The same for every epoch. */
  readonly stepsPerEpoch: number;
  private readonly samples: Sample[];
  private readonly replayed: Sample[];
  private readonly drawn: number;

  constructor(
    samples: readonly Sample[],
    private readonly plan: WholePlan,
    private readonly size: number,
  ) {
    this.samples = samples.filter((sample) => weightOf(sample) > 0);
    this.replayed = (plan.replay?.samples ?? []).filter((sample) => weightOf(sample) > 0);
    const share = this.replayed.length > 0 ? (plan.replay?.share ?? 0) : 0;
    this.drawn = Math.round((this.samples.length * share) / (1 - share));
    this.rows = this.samples.length + this.drawn;
    this.stepsPerEpoch = Math.ceil(this.rows / size);
  }

  batches(epoch: number): Batch[] {
    const random = new Random(BigInt.asIntN(64, BigInt(this.plan.seed) * EPOCHS_APART + BigInt(epoch)));
    const rows = [...this.samples, ...this.draw(random)];
    const ordered = this.plan.shuffle ? shuffled(rows, random) : rows;
    if (!this.plan.balanceClasses) return inBatches(ordered, this.size);
    const shares = new Map<number, number>();
    for (const row of rows) shares.set(classOf(row), (shares.get(classOf(row)) ?? 0) + weightOf(row));
    const mean = sum([...shares.values()]) / shares.size;
    return inBatches(ordered, this.size, (row) =>
      Math.fround((weightOf(row) * mean) / (shares.get(classOf(row)) ?? 1)),
    );
  }

  /** Different samples as long as there are any. */
  private draw(random: Random): Sample[] {
    const rounds = Math.ceil(this.drawn / this.replayed.length) || 0;
    return Array.from({ length: rounds }, () => shuffled(this.replayed, random))
      .flat()
      .slice(0, this.drawn);
  }
}

/** The label, or the place of the largest number of a one-hot row. */
export function classOf(sample: Sample): number {
  const target = sample.targets[TARGET];
  if (target instanceof Float32Array) return target.indexOf(Math.max(...target));
  if (target?.length !== 1) throw new InputError("balanceClasses needs one label a sample");
  return target[0] ?? 0;
}

/** All numbers, added up. */
export function sum(numbers: readonly number[]): number {
  return numbers.reduce((all, each) => all + each, 0);
}

function chunked<T>(items: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(items.length / size) }, (_, i) => items.slice(i * size, (i + 1) * size));
}
