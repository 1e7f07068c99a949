import { TARGET } from "../manifest/manifest.ts";

/** The numbers of one row of a tensor in row-major order; bools are bytes of 0 or 1. Not copied: do not change them. */
export type Values = Float32Array | Int32Array | Int16Array | Uint8Array | Int8Array;

/** One row of every input of the model, or of every output, by name. */
export type Row = Record<string, Values>;

/** One row to learn from. */
export interface Sample {
  /** Each input of the model by name. */
  readonly inputs: Row;
  /** What the model should answer: `y`, or several by the name that each has in the program behind `y/`. */
  readonly targets: Row;
  /** How much it counts, from 0 on; 1 when it is left out. */
  readonly weight?: number;
}

/** A sample of one input named `x` and its label, or numbers: a one-hot row, or the values of a regression. */
export function labelled(x: Float32Array, answer: number | Float32Array, weight = 1): Sample {
  const y = typeof answer === "number" ? Int32Array.of(answer) : answer;
  return { inputs: { x }, targets: { [TARGET]: y }, weight };
}

/** The only target, whatever its name; undefined where there are several. */
export function onlyTarget({ targets }: Sample): Values | undefined {
  const [target, another] = Object.values(targets);
  return another ? undefined : target;
}

/** The labels of the only target, or the classes that have a share of it. */
export function labelledClasses(sample: Sample): number[] {
  const target = onlyTarget(sample) ?? new Int32Array();
  if (target instanceof Float32Array) return [...target.keys()].filter((label) => (target[label] ?? 0) > 0);
  return Array.from(target).filter((label) => label >= 0);
}

/** How much a sample counts, as the program gets it. */
export function weightOf(sample: Sample): number {
  return Math.fround(sample.weight ?? 1);
}

/** How well the model does on some samples. */
export interface Evaluation {
  /** The mean by weight. */
  readonly loss: number;
  /** The share of right answers by weight; null where the program does not count them. */
  readonly accuracy: number | null;
}

/** Whether `after` is as good as `before` or better: by accuracy, and by loss where there is none. */
export function isMatched(before: Evaluation, after: Evaluation): boolean {
  if (before.accuracy !== null && after.accuracy !== null) return after.accuracy >= before.accuracy;
  return after.loss <= before.loss;
}
