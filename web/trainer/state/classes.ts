import { type Bytes, text, utf8 } from "../bytes.ts";
import { InputError } from "../errors.ts";
import type { Manifest } from "../manifest/manifest.ts";
import { labelledClasses, type Sample } from "../program/samples.ts";
import type { StoredTensor } from "../program/state-spec.ts";

const WORDS = 16;

const DAMAGED = "the state's names of classes are damaged";

/** Of a name in UTF-8, at most. */
export const NAME_BYTES = 4 * (WORDS - 1);

/** The highest bias of a class that there is not: its share of a softmax is 0 exactly, and so is every gradient. */
export const FREE = -30_000;

/** What each class is called in a state, by label; null where there is room for one. Throws InputError without such. */
export function classesOf(manifest: Manifest, state: readonly StoredTensor[]): (string | null)[] {
  const { head, labels } = manifest.fields;
  if (head === null)
    throw new InputError(
      "the program's last layer is set by steps alone: build with " +
        "head='class_means', and room for classes, classes='10+20'",
    );
  const stored = state.find((tensor) => tensor.name === head.names);
  if (!stored) return labels ?? Array.from({ length: head.own }, (_, label) => `${label}`);
  const { buffer, byteOffset, byteLength } = stored.bytes;
  const view = new DataView(buffer, byteOffset, byteLength);
  return Array.from({ length: byteLength / (4 * WORDS) }, (_, label) => {
    const start = 4 * WORDS * label;
    const length = view.getInt32(start, true);
    if (length < 0 || length > NAME_BYTES) throw new InputError(DAMAGED);
    return length === 0 ? null : nameIn(stored.bytes.subarray(start + 4, start + 4 + length));
  });
}

function nameIn(bytes: Bytes): string {
  try {
    return text(bytes);
  } catch (error) {
    throw error instanceof TypeError ? new InputError(DAMAGED) : error;
  }
}

/** The tensor of the state that holds names by label. */
export function written(names: readonly (string | null)[]): Bytes {
  const bytes = new Uint8Array(4 * WORDS * names.length);
  for (const [label, name] of names.entries()) {
    const encoded = utf8(name ?? "");
    new DataView(bytes.buffer).setInt32(4 * WORDS * label, encoded.length, true);
    bytes.set(encoded, 4 * WORDS * label + 4);
  }
  return bytes;
}

/** Throws InputError for samples of a class that there is not. */
export function checkKnown(names: readonly (string | null)[], samples: readonly Sample[]): void {
  for (const [i, sample] of samples.entries()) {
    const free = labelledClasses(sample).find((label) => names[label] === null);
    if (free !== undefined)
      throw new InputError(`samples[${i}]: label ${free} is of no class yet: addClass(name) makes one`);
  }
}
