import { byLength } from "../manifest/lengths.ts";
import type { Manifest } from "../manifest/manifest.ts";
import type { Row, Sample, Values } from "../program/samples.ts";
import { Batch } from "./batches.ts";

/** A label that no loss counts. */
const LEFT_OUT = -1;

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
