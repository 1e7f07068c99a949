import { InputError } from "../errors.ts";
import { checkedBias } from "./class-means.ts";

/** By what part the covariance of each class is shrunk towards its mean variance: `auto` as Ledoit and Wolf say. */
export type Shrinkage = "auto" | number;

/** A pivot that is so much smaller than the largest variance is 0 but for rounding. */
const SINGULAR = 2 ** -52;

/**
 * A linear discriminant as a dense layer: class means under a covariance that all classes share, shrunk; the twin of the
 * host's `converter/runtime/session/discriminant.py`, and scikit-learn's `LinearDiscriminantAnalysis(solver="lsqr")`.
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
    const size = means[0]?.length ?? 0;
    const covariance = Array.from({ length: size }, (_, i) => new Float64Array(i + 1));
    const shares = means.map((mean, place) => {
      const own = rows.filter((_, row) => labels[row] === place);
      const share = own.length / rows.length;
      const centred = own.map((row) => row.map((number, i) => number - (mean[i] ?? 0)));
      addShrunk(covariance, centred, shrinkage, share);
      return share;
    });
    factorize(covariance);
    const weights = means.map((mean) => solved(covariance, mean));
    const biases = weights.map((row, at) => Math.log(shares[at] ?? 0) - dot(row, means[at] ?? row) / 2);
    return new Discriminant(weights, biases);
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

/** Adds a share of the shrunk covariance of rows whose mean is 0, to the lower half of a matrix. */
function addShrunk(to: Matrix, centred: Float64Array[], shrinkage: Shrinkage, share: number): void {
  const scale = to.map((_, i) => (shrinkage === "auto" ? deviation(centred, i) || 1 : 1));
  const rows = centred.map((row) => row.map((number, i) => number / (scale[i] ?? 1)));
  const covariance: Matrix = to.map((_, i) => new Float64Array(i + 1));
  for (const row of rows) {
    for (const [i, line] of covariance.entries()) {
      const factor = (row[i] ?? 0) / rows.length;
      for (let j = 0; j <= i; j++) line[j] = (line[j] ?? 0) + factor * (row[j] ?? 0);
    }
  }
  const variance = covariance.reduce((sum, line, i) => sum + (line[i] ?? 0), 0) / to.length;
  const part = shrinkage === "auto" ? ledoitWolf(rows, covariance, variance) : shrinkage;
  for (const [i, line] of to.entries()) {
    for (let j = 0; j <= i; j++) {
      const shrunk = (1 - part) * (covariance[i]?.[j] ?? 0) + (i === j ? part * variance : 0);
      line[j] = (line[j] ?? 0) + share * (scale[i] ?? 1) * (scale[j] ?? 1) * shrunk;
    }
  }
}

function deviation(rows: Float64Array[], i: number): number {
  return Math.sqrt(rows.reduce((sum, row) => sum + (row[i] ?? 0) ** 2, 0) / rows.length);
}

/** Ledoit and Wolf's shrinkage: the error of the covariance by its distance from a multiple of the unit matrix. */
function ledoitWolf(rows: Float64Array[], covariance: Matrix, variance: number): number {
  const size = covariance.length;
  if (size === 1) return 0;
  const squares = covariance.reduce((sum, line, i) => sum + 2 * dot(line, line) - (line[i] ?? 0) ** 2, 0);
  const distance = squares - size * variance ** 2;
  const lengths = rows.reduce((sum, row) => sum + dot(row, row) ** 2, 0);
  const error = Math.min((lengths / rows.length - squares) / rows.length, distance);
  return error > 0 ? error / distance : 0;
}

/** The lower factor of Cholesky in the place of the lower half of a matrix. */
function factorize(matrix: Matrix): void {
  const largest = matrix.reduce((most, line, i) => Math.max(most, line[i] ?? 0), 0);
  for (const [i, line] of matrix.entries()) {
    for (const [j, other] of matrix.slice(0, i + 1).entries()) {
      let sum = line[j] ?? 0;
      for (let k = 0; k < j; k++) sum -= (line[k] ?? 0) * (other[k] ?? 0);
      if (i === j && !(sum > SINGULAR * largest)) {
        throw new InputError(
          "the features of a class do not differ enough for a covariance: pass more samples of each class (two at least), " +
            "or a larger shrinkage",
        );
      }
      line[j] = i === j ? Math.sqrt(sum) : sum / (other[j] ?? 1);
    }
  }
}

/** What the factorized matrix takes to `right`. */
function solved(lower: Matrix, right: Float64Array): Float64Array {
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
