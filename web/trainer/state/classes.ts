import { InputError } from "../errors.ts";
import { type Manifest, TARGET } from "../manifest/manifest.ts";
import type { Sample } from "../program/samples.ts";
import type { StoredTensor } from "../program/state-spec.ts";

const WORDS = 16;

/** What each class is called in a state, by label; null where there is room for one. Throws InputError without such. */
export function classesOf(manifest: Manifest, state: readonly StoredTensor[]): (string | null)[] {
  const { head, labels } = manifest.fields;
  if (head === null) throw new InputError("the program's last layer is set by steps alone: build with classes='10+20'");
  const stored = state.find((tensor) => tensor.name === head.names);
  if (!stored) return labels ?? Array.from({ length: head.own }, (_, label) => `${label}`);
  const { buffer, byteOffset, byteLength } = stored.bytes;
  const view = new DataView(buffer, byteOffset, byteLength);
  return Array.from({ length: byteLength / (4 * WORDS) }, (_, label) => {
    const start = 4 * WORDS * label;
    const length = view.getInt32(start, true);
    if (length < 0 || length > 4 * (WORDS - 1)) throw new InputError("the state's names of classes are damaged");
    return length === 0 ? null : new TextDecoder().decode(stored.bytes.subarray(start + 4, start + 4 + length));
  });
}

/** Throws InputError for samples of a class that there is not. */
export function checkKnown(manifest: Manifest, state: readonly StoredTensor[], samples: readonly Sample[]): void {
  const names = classesOf(manifest, state);
  for (const [i, { targets }] of samples.entries()) {
    const y = targets[TARGET];
    const shares = y instanceof Float32Array;
    const labels = shares ? [...y.keys()].filter((label) => (y[label] ?? 0) > 0) : Array.from(y ?? [], Number);
    const free = labels.find((label) => names[label] === null);
    if (free !== undefined) throw new InputError(`samples[${i}]: label ${free} is of no class yet`);
  }
}
