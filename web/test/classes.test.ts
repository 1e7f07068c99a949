import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import type { Bytes } from "../trainer/bytes.ts";
import { InputError } from "../trainer/errors.ts";
import { readManifest } from "../trainer/manifest/manifest-checks.ts";
import { labelled } from "../trainer/program/samples.ts";
import { checkKnown, classesOf } from "../trainer/state/classes.ts";

const manifest = readManifest(new Uint8Array(readFileSync("../tests/manifest/good/later-classes.json")));

/** The names of six classes as the host writes them: bytes and these, 64 a class. */
function named(...names: string[]) {
  const bytes: Bytes = new Uint8Array(64 * names.length);
  for (const [label, name] of names.entries()) {
    const encoded = new TextEncoder().encode(name);
    bytes[64 * label] = encoded.length;
    bytes.set(encoded, 64 * label + 4);
  }
  return [{ name: "classes/names", dtype: "int32" as const, shape: [names.length, 16], bytes }];
}

test("classes have the names of the state", () => {
  const state = named("0", "1", "2", "zwölf", "", "");
  assert.deepEqual(classesOf(manifest, state), ["0", "1", "2", "zwölf", null, null]);
});

test("samples of a class that there is not are refused", () => {
  const state = named("0", "1", "2", "zwölf", "", "");
  checkKnown(manifest, state, [labelled(new Float32Array(6), 3)]);
  assert.throws(() => checkKnown(manifest, state, [labelled(new Float32Array(6), 4)]), InputError);
  const shares = Float32Array.of(0, 0, 0, 0, 0, 1);
  assert.throws(() => checkKnown(manifest, state, [labelled(new Float32Array(6), shares)]), InputError);
});
