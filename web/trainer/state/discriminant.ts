import { InputError } from "../errors.ts";
import { checkedBias, meanOf } from "./class-means.ts";

/** By what part the covariance of each class is shrunk towards its mean variance: `auto` as Ledoit and Wolf say. */
export type Shrinkage = "auto" | number;

/** A pivot that is so much smaller than the largest variance is 0 but for rounding. */
const SINGULAR = 2 ** -52;

/**
 * A linear discriminant as a dense layer: class means under a covariance that all classes share, shrunk; the twin of the
 * host's `converter/runtime/session/discriminant.py`, and scikit-learn's `LinearDiscriminantAnalysis(solver="lsqr")`.
 * Logits are from the middle of the means on, which makes them smaller and no class likelier. The lowest bias is 0: those of
 * class means are below it, so that a discriminant is never taken for them.
 */
export class Discriminant {
  private constructor(
    /** Of each class. */
    private readonly rows: readonly Float64Array[],
    private readonly biases: readonly number[],
  ) {}

  /**
   * The discriminant of rows, whose shares are the priors. The labels are places in `means`, which are the means of these
   * very rows. Throws InputError: there is one class, or the rows of a class do not differ enough.
   */
  static of(
    rows: readonly Float64Array[],
    labels: readonly number[],
    means: readonly Float64Array[],
    shrinkage: Shrinkage,
  ): Discriminant {
    if (shrinkage !== "auto" && !(shrinkage > 0 && shrinkage <= 1)) {
      throw new InputError(`shrinkage: 'auto', or a number above 0 and to 1, not ${shrinkage}`);
    }
    if (means.length < 2) {
      throw new InputError("shrinkage needs two classes or more, that there is something to tell apart");
    }
    const diagonal = new Float64Array(means[0]?.length ?? 0);
    const scattered: Float64Array[] = [];
    const shares = means.map((mean, place) => {
      const own = rows.filter((_, row) => labels[row] === place);
      const share = own.length / rows.length;
      const centred = own.map((row) => row.map((number, i) => number - (mean[i] ?? 0)));
      scattered.push(...shrunk(centred, shrinkage, diagonal, share, rows.length));
      return share;
    });
    const middle = meanOf(means);
    const weights = solved(
      scattered,
      diagonal,
      means.map((mean) => mean.map((number, i) => number - (middle[i] ?? 0))),
    );
    const biases = weights.map(
      (row, at) => Math.log(shares[at] ?? 0) - (dot(row, means[at] ?? row) + dot(row, middle)) / 2,
    );
    const lowest = Math.min(...biases);
    return new Discriminant(
      weights,
      biases.map((bias) => bias - lowest),
    );
  }

  /** The weights of a class. */
  weights(at: number): Float32Array {
    return Float32Array.from(this.rows[at] ?? []);
  }

  /** Its bias. Throws InputError where float32 rounds logits of its size coarsely. */
  bias(at: number): number {
    return checkedBias(this.biases[at] ?? 0);
  }
}

type Matrix = Float64Array[];

/**
 * Rows whose mean is 0, multiplied so that their products add up to what is left of their covariance; what is added to its
 * diagonal, times their share of all rows, goes to `diagonal`.
 */
function shrunk(
  centred: Float64Array[],
  shrinkage: Shrinkage,
  diagonal: Float64Array,
  share: number,
  all: number,
): Float64Array[] {
  const scale = diagonal.map((_, i) => (shrinkage === "auto" ? deviation(centred, i) || 1 : 1));
  const standard = centred.map((row) => row.map((number, i) => number / (scale[i] ?? 1)));
  const variance = standard.reduce((sum, row) => sum + dot(row, row), 0) / standard.length / scale.length;
  const part = shrinkage === "auto" ? ledoitWolf(standard, variance) : shrinkage;
  for (const [i, factor] of scale.entries()) diagonal[i] = (diagonal[i] ?? 0) + share * part * variance * factor ** 2;
  const factor = Math.sqrt((1 - part) / all);
  for (const row of centred) for (let i = 0; i < row.length; i++) row[i] = (row[i] ?? 0) * factor;
  return centred;
}

function deviation(rows: Float64Array[], i: number): number {
  return Math.sqrt(rows.reduce((sum, row) => sum + (row[i] ?? 0) ** 2, 0) / rows.length);
}

/** Ledoit and Wolf's shrinkage: the error of the covariance by its distance from a multiple of the unit matrix. */
function ledoitWolf(rows: Float64Array[], variance: number): number {
  const size = rows[0]?.length ?? 0;
  if (size === 1) return 0;
  const lines =
    rows.length < size
      ? rows.map((row, i) => Float64Array.from(rows.slice(0, i + 1), (it) => dot(row, it)))
      : scatter(rows);
  const squares = lines.reduce((sum, line, i) => sum + 2 * dot(line, line) - (line[i] ?? 0) ** 2, 0) / rows.length ** 2;
  const distance = squares - size * variance ** 2;
  const lengths = rows.reduce((sum, row) => sum + dot(row, row) ** 2, 0);
  const error = Math.min((lengths / rows.length - squares) / rows.length, distance);
  return error > 0 ? error / distance : 0;
}

/** The lower half of the products of rows, added up. */
function scatter(rows: readonly Float64Array[]): Matrix {
  const covariance = Array.from({ length: rows[0]?.length ?? 0 }, (_, i) => new Float64Array(i + 1));
  for (const row of rows) {
    for (const [i, line] of covariance.entries()) {
      const factor = row[i] ?? 0;
      for (let j = 0; j <= i; j++) line[j] = (line[j] ?? 0) + factor * (row[j] ?? 0);
    }
  }
  return covariance;
}

/**
 * What the products of rows, added up, and a diagonal take to each of `right`. An input whose variance is 0 beside that of
 * others, but for rounding, has no part in it: layer norms leave some of 1e-32.
 */
function solved(rows: readonly Float64Array[], diagonal: Float64Array, right: readonly Float64Array[]): Float64Array[] {
  const variances = rows.reduce((sums, row) => sums.map((sum, i) => sum + (row[i] ?? 0) ** 2), diagonal);
  const least = SINGULAR * variances.reduce((most, it) => Math.max(most, it), 0);
  const varying = [...variances.keys()].filter((i) => (variances[i] ?? 0) > diagonal.length * least);
  if (varying.length === 0) refuse();
  if (varying.length === diagonal.length) return solvedOfVarying(rows, diagonal, right, least);
  const of = (row: Float64Array) => Float64Array.from(varying, (i) => row[i] ?? 0);
  return solvedOfVarying(rows.map(of), of(diagonal), right.map(of), least).map((found) => {
    const whole = new Float64Array(diagonal.length);
    for (const [at, i] of varying.entries()) whole[i] = found[at] ?? 0;
    return whole;
  });
}

/**
 * The same of inputs that all vary; no pivot is `least` or below. Of fewer rows than inputs by the identity of Woodbury,
 * whose matrix has a row and column each: the covariance of 1,280 inputs alone has 7 MB. The rows, which of many blocks have
 * some 10 MB, are used up.
 */
function solvedOfVarying(
  rows: readonly Float64Array[],
  diagonal: Float64Array,
  right: readonly Float64Array[],
  least: number,
): Float64Array[] {
  if (rows.length >= diagonal.length || !diagonal.every((it) => it > least)) {
    const covariance = scatter(rows);
    for (const [i, line] of covariance.entries()) line[i] = (line[i] ?? 0) + (diagonal[i] ?? 0);
    factorize(covariance, least);
    return right.map((wanted) => substituted(covariance, wanted));
  }
  const scale = diagonal.map(Math.sqrt);
  for (const row of rows) divide(row, scale);
  const beside = rows.map((row, i) =>
    Float64Array.from(rows.slice(0, i + 1), (it, j) => dot(row, it) + Number(i === j)),
  );
  factorize(beside, 0);
  return right.map((wanted) => {
    const found = wanted.slice();
    divide(found, scale);
    const parts = substituted(
      beside,
      Float64Array.from(rows, (row) => dot(row, found)),
    );
    for (const [at, row] of rows.entries()) {
      const part = parts[at] ?? 0;
      for (let i = 0; i < found.length; i++) found[i] = (found[i] ?? 0) - part * (row[i] ?? 0);
    }
    divide(found, scale);
    return found;
  });
}

/** Divides numbers by those of another array. */
function divide(numbers: Float64Array, by: Float64Array): void {
  for (let i = 0; i < numbers.length; i++) numbers[i] = (numbers[i] ?? 0) / (by[i] ?? 1);
}

/** The lower factor of Cholesky in the place of the lower half of a matrix, whose pivots are above `least`. */
function factorize(matrix: Matrix, least: number): void {
  for (const [i, line] of matrix.entries()) {
    for (const [j, other] of matrix.slice(0, i + 1).entries()) {
      let sum = line[j] ?? 0;
      for (let k = 0; k < j; k++) sum -= (line[k] ?? 0) * (other[k] ?? 0);
      if (i === j && !(sum > least)) refuse();
      line[j] = i === j ? Math.sqrt(sum) : sum / (other[j] ?? 1);
    }
  }
}

function refuse(): never {
  throw new InputError(
    "the features of a class do not differ enough for a covariance: pass more samples of each class (two at least), " +
      "or a larger shrinkage",
  );
}

/** What the factorized matrix takes to `right`. */
function substituted(lower: Matrix, right: Float64Array): Float64Array {
  const found = right.slice();
  const at = (i: number, k: number) => lower[i]?.[k] ?? 0;
  for (let i = 0; i < found.length; i++) {
    let sum = found[i] ?? 0;
    for (let k = 0; k < i; k++) sum -= at(i, k) * (found[k] ?? 0);
    found[i] = sum / at(i, i);
  }
  for (let i = found.length - 1; i >= 0; i--) {
    let sum = found[i] ?? 0;
    for (let k = i + 1; k < found.length; k++) sum -= at(k, i) * (found[k] ?? 0);
    found[i] = sum / at(i, i);
  }
  return found;
}

function dot(a: Float64Array, b: Float64Array): number {
  return a.reduce((sum, number, i) => sum + number * (b[i] ?? 0), 0);
}
