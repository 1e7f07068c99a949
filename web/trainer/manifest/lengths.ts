import { type Manifest, ofRole } from "./manifest.ts";
import type { Signature, TensorSpec } from "./manifest-records.ts";

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
