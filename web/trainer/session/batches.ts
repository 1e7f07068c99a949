import { InputError } from "../errors.ts";
import type { Manifest } from "../manifest/manifest.ts";
import { onlyTarget, type Row, type Sample, weightOf } from "../program/samples.ts";
import type { WholePlan } from "./plan.ts";
import { Random, shuffled } from "./random.ts";
import { Skipping } from "./skipping.ts";

/** Rows of one step or of one call, at most as many as that takes, and how much each counts. */
export class Batch {
  readonly weight: number;

  constructor(
    readonly rows: readonly Sample[],
    readonly weights: readonly number[],
    /** Of an epoch's rows, among all of the training. */
    readonly places: readonly number[] = [],
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
  const counting = samples.filter((sample) => weightOf(sample) > 0);
  return chunked(counting, size).map((rows) => new Batch(rows, rows.map(weight)));
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

/** What each epoch of a training sees: the samples and a new draw of the replayed ones, in an order of the seed's. */
export class Curriculum {
  /** How many rows an epoch sees. */
  readonly rows: number;
  /** The same for every epoch. */
  readonly stepsPerEpoch: number;
  /** Which rows do not come; null where all do. */
  readonly skipping: Skipping | null;
  /** The samples, then those replayed: places are in these. */
  private readonly all: readonly Sample[];
  private readonly own: number;
  private readonly drawn: number;

  constructor(
    samples: readonly Sample[],
    private readonly plan: WholePlan,
    private readonly size: number,
  ) {
    const counting = samples.filter((sample) => weightOf(sample) > 0);
    const replayed = (plan.replay?.samples ?? []).filter((sample) => weightOf(sample) > 0);
    this.all = [...counting, ...replayed];
    this.own = counting.length;
    const share = replayed.length > 0 ? (plan.replay?.share ?? 0) : 0;
    this.drawn = Math.round((this.own * share) / (1 - share));
    this.rows = this.own + this.drawn;
    this.stepsPerEpoch = Math.ceil(this.rows / size);
    this.skipping = plan.skip && new Skipping(plan.skip, this.all.length, plan.firstEpoch + plan.epochs - 1);
  }

  batches(epoch: number): Batch[] {
    const random = Random.ofEpoch(this.plan.seed, epoch);
    const places = [...counted(0, this.own), ...this.draw(random)];
    const ordered = this.plan.shuffle ? shuffled(places, random) : places;
    const weigh = this.plan.balanceClasses ? balanced(this.at(places)) : weightOf;
    return chunked(this.skipping?.coming(epoch, ordered) ?? ordered, this.size).map((some) => {
      const rows = this.at(some);
      return new Batch(rows, rows.map(weigh), some);
    });
  }

  private at(places: readonly number[]): Sample[] {
    return places.flatMap((place) => this.all[place] ?? []);
  }

  /** Places of different replayed samples as long as there are any. */
  private draw(random: Random): number[] {
    const replayed = counted(this.own, this.all.length);
    const rounds = Math.ceil(this.drawn / replayed.length) || 0;
    return Array.from({ length: rounds }, () => shuffled(replayed, random))
      .flat()
      .slice(0, this.drawn);
  }
}

/** The weights with which all classes of an epoch weigh the same. */
function balanced(rows: readonly Sample[]): (row: Sample) => number {
  const shares = new Map<number, number>();
  for (const row of rows) shares.set(classOf(row), (shares.get(classOf(row)) ?? 0) + weightOf(row));
  const mean = sum([...shares.values()]) / shares.size;
  return (row) => Math.fround((weightOf(row) * mean) / (shares.get(classOf(row)) ?? 1));
}

/** The whole numbers from `first` to before `end`. */
function counted(first: number, end: number): number[] {
  return Array.from({ length: end - first }, (_, i) => first + i);
}

/** The label, or the place of the largest number of a one-hot row, of the only target. */
export function classOf(sample: Sample): number {
  const target = onlyTarget(sample);
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
