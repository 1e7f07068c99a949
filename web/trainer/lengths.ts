import { Batch } from "./batches.ts";
import { type Manifest, ofRole } from "./manifest.ts";
import type { Signature, TensorSpec } from "./manifest-records.ts";
import type { Row, Sample, Values } from "./samples.ts";

/** A label that no loss counts. */
const LEFT_OUT = -1;

/** Of `train_length_64` and the like `train` and 64; of any other name of a signature itself and null. */
export function atLength(name: string): [string, number | null] {
  const found = /^(train|accumulate|gradients|evaluate|infer)_length_([1-9][0-9]{0,8})$/.exec(name);
  return found?.[1] ? [found[1], Number(found[2])] : [name, null];
}

/** Tokens of a row of a signature, 0 where its first input has none. */
export function tokensOf(signature: Signature): number {
  return ofRole(signature.inputs, "input")[0]?.shape[1] ?? 0;
}

/** What takes and gives so many tokens in the place of its own. */
export function ofTokens(signature: Signature, count: number): TensorSpec[] {
  const tokens = tokensOf(signature);
  return [...signature.inputs, ...signature.outputs].map((spec) => {
    const isRows = ["input", "target", "output"].includes(spec.role) && spec.shape[1] === tokens;
    return isRows ? { ...spec, shape: [spec.shape[0] ?? 0, count, ...spec.shape.slice(2)] } : spec;
  });
}

/** The signatures that stand for one, by the tokens of a row that each takes, the fewest first; none of one length. */
export function byLength(manifest: Manifest, signature: string): [number, string][] {
  const shorter = [...manifest.fields.signatures.keys()].filter((name) => {
    const [base, tokens] = atLength(name);
    return base === signature && tokens !== null;
  });
  if (shorter.length === 0) return [];
  const found = [...shorter, signature].map((name): [number, string] => [tokensOf(manifest.signature(name)), name]);
  return found.sort(([a], [b]) => a - b);
}

/**
 * The signature of the fewest tokens that hold what is asked for of some rows, and the rows cut or padded to these.
 *
 * What stands behind the last label of a row changes nothing before it; of rows without labels all tokens are asked for.
 */
export function ofFewestTokens(manifest: Manifest, signature: string, batch: Batch): [string, Batch] {
  const known = byLength(manifest, signature);
  const asked = Math.max(...batch.rows.map(askedOf));
  const just = known.find(([tokens]) => tokens >= asked);
  if (!just) return [signature, batch];
  const [tokens, name] = just;
  return [
    name,
    new Batch(
      batch.rows.map((row) => cut(row, tokens)),
      batch.weights,
    ),
  ];
}

/** Tokens of a row of a program of several lengths. */
export function tokensIn(row: Row): number {
  return Object.values(row)[0]?.length ?? 0;
}

/** How many tokens there are up to the last one with a label. */
function askedOf({ inputs, targets }: Sample): number {
  const labels = Object.values(targets);
  if (labels.length === 0) return tokensIn(inputs);
  return Math.max(...labels.map((each) => 1 + Array.prototype.findLastIndex.call(each, (label: number) => label >= 0)));
}

function cut(sample: Sample, tokens: number): Sample {
  return { ...sample, inputs: fitted(sample.inputs, tokens, 0), targets: fitted(sample.targets, tokens, LEFT_OUT) };
}

function fitted(row: Row, tokens: number, other: number): Row {
  return Object.fromEntries(
    Object.entries(row).map(([name, values]): [string, Values] => {
      const made = new (values.constructor as new (size: number) => Values)(tokens).fill(other);
      made.set(values.subarray(0, tokens));
      return [name, made];
    }),
  );
}
