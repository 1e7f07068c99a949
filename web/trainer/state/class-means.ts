import { InputError } from "../errors.ts";

/** Powers of two that are tried for the sharpness, beside the mean squared distance of a row to its class. */
const TRIED = 12;

/** By how much sharpnesses of rows may differ that are one but for rounding to float32. */
const ROUNDING = 1e-3;

/** Biases are no larger than this: float32 rounds logits of a million to a sixteenth. */
const LARGEST_BIAS = 1_048_576;

type Numbers = ArrayLike<number>;

/**
 * Nearest class means as a dense layer: logits -sharpness / 2 (|x - mean|^2 + farther), but for what all classes have in
 * common; the twin of the host's `converter/runtime/session/class_means.py`.
 */
export class ClassMeans {
  constructor(
    /** Of each class. */
    readonly means: readonly Float64Array[],
    readonly sharpness: number,
    /** What is added to the squared distance of a class, whose mean is of few samples. */
    readonly farther: readonly number[],
  ) {}

  /** The weights of a class. */
  weights(at: number): Float32Array {
    return Float32Array.from(this.means[at] ?? [], (number) => this.sharpness * number);
  }

  /** Its bias. Throws InputError where logits would be so large that float32 rounds them coarsely. */
  bias(at: number): number {
    return checkedBias((-this.sharpness / 2) * (square(this.means[at] ?? []) + (this.farther[at] ?? 0)));
  }
}

/** A bias as float32. Throws InputError where that rounds logits of its size coarsely. */
export function checkedBias(bias: number): number {
  if (!(Math.abs(bias) <= LARGEST_BIAS)) {
    throw new InputError(
      "the means of the classes are too large beside their differences: the last layer would have a bias of " +
        `${bias.toPrecision(3)}, and float32 is too coarse beyond 1,048,576. Normalise the input of the last layer, as a ` +
        "batch norm or layer norm does",
    );
  }
  return Math.fround(bias);
}

/** The mean of rows. */
export function meanOf(rows: readonly Float64Array[]): Float64Array {
  const sums = new Float64Array(rows[0]?.length ?? 0);
  for (const row of rows) for (const [i, number] of row.entries()) sums[i] = (sums[i] ?? 0) + number;
  return sums.map((sum) => sum / rows.length);
}

/**
 * The sharpness with which the softmax of a row says its class best, the row left out of its class' mean: a power of two
 * over the mean squared distance of a row to its class. Rows that are alone in their class have no part. The labels are
 * places in `means`, which for these are the means of these very rows.
 */
export function sharpnessOf(
  rows: readonly Float64Array[],
  labels: readonly number[],
  means: readonly Float64Array[],
): number {
  const counts = means.map((_, place) => labels.filter((label) => label === place).length);
  const countOf = (row: number) => counts[labels[row] ?? 0] ?? 0;
  const apart = [...rows.keys()].filter((row) => countOf(row) > 1);
  const distances = apart.map((row) =>
    means.map((mean, place) => squared(rows[row] ?? [], mean) * (place === labels[row] ? leftOut(countOf(row)) : 1)),
  );
  const own = apart.map((row, i) => distances[i]?.[labels[row] ?? 0] ?? 0);
  const spread = own.length > 0 ? average(own) : 0;
  if (spread === 0) {
    const middle = meanOf(means);
    // Of one class alone: any will do that is of its size.
    const between = average(means.map((mean) => squared(mean, middle))) || average(means.map(square));
    return between > 0 ? TRIED / between : 1;
  }
  const tried = Array.from({ length: TRIED }, (_, power) => 2 ** power / spread);
  const losses = tried.map((sharpness) =>
    average(
      distances.map((each, i) => {
        const scores = each.map((distance) => (-sharpness / 2) * distance);
        const top = Math.max(...scores);
        const sum = scores.reduce((all, score) => all + Math.exp(score - top), 0);
        return Math.log(sum) + top + (sharpness / 2) * (own[i] ?? 0);
      }),
    ),
  );
  return tried[losses.indexOf(Math.min(...losses))] ?? 1;
}

/** By how much farther a class is than the mean of its few samples: the log of 1 + 1 / n times their spread. */
export function fartherOf(rows: readonly Float64Array[]): number {
  if (rows.length < 2) return 0;
  const mean = meanOf(rows);
  return Math.log1p(1 / rows.length) * average(rows.map((row) => squared(row, mean))) * leftOut(rows.length);
}

/**
 * The class means that a dense layer was made of; null where it is another, as after a step. `whole`: which classes are no
 * farther than their means: they tell the sharpness.
 */
export function meansIn(
  weights: readonly Float32Array[],
  biases: readonly number[],
  whole: readonly boolean[],
): ClassMeans | null {
  const squares = weights.map(square);
  const biasOf = (at: number) => biases[at] ?? 0;
  const tells = [...weights.keys()].filter((at) => whole[at] && ((squares[at] ?? 0) > 0 || biasOf(at) !== 0));
  if (tells.length === 0) {
    const isNothing = weights.length > 0 && squares.every((it) => it === 0) && biases.every((it) => it === 0);
    return isNothing
      ? new ClassMeans(
          weights.map((row) => Float64Array.from(row)),
          1,
          weights.map(() => 0),
        )
      : null;
  }
  if (tells.some((at) => biasOf(at) >= 0)) return null;
  const found = tells.map((at) => (squares[at] ?? 0) / (-2 * biasOf(at))).sort((a, b) => a - b);
  const middle = (found.length - 1) / 2;
  const sharpness = ((found[Math.floor(middle)] ?? 0) + (found[Math.ceil(middle)] ?? 0)) / 2;
  if (sharpness === 0 || found.some((each) => Math.abs(each / sharpness - 1) > ROUNDING)) return null;
  const means = weights.map((row) => Float64Array.from(row, (number) => number / sharpness));
  const lengths = means.map(square);
  const farther = means.map((_, at) => (-2 * biasOf(at)) / sharpness - (lengths[at] ?? 0));
  return farther.some((it) => it < -ROUNDING * Math.max(...lengths)) ? null : new ClassMeans(means, sharpness, farther);
}

function square(row: Numbers): number {
  return Array.prototype.reduce.call(row, (sum, number) => (sum as number) + (number as number) ** 2, 0) as number;
}

function squared(a: Numbers, b: Numbers): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += ((a[i] ?? 0) - (b[i] ?? 0)) ** 2;
  return sum;
}

/** What a squared distance to a mean of so many is without the row itself in it. */
function leftOut(count: number): number {
  return (count / (count - 1)) ** 2;
}

function average(numbers: readonly number[]): number {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
}
