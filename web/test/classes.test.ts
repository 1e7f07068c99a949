import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import type { Bytes } from "../trainer/bytes.ts";
import { InputError } from "../trainer/errors.ts";
import { readManifest } from "../trainer/manifest/manifest-checks.ts";
import { labelled } from "../trainer/program/samples.ts";
import { meanOf } from "../trainer/state/class-means.ts";
import { checkKnown, classesOf } from "../trainer/state/classes.ts";
import { Discriminant, type Shrinkage } from "../trainer/state/discriminant.ts";

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

test("names are those that were written, a byte order mark at their head too, and bytes that are none are refused", () => {
  assert.deepEqual(classesOf(manifest, named("0", "\ufeffcat", "2")), ["0", "\ufeffcat", "2"]);
  const state = named("0", "1", "2");
  state[0]?.bytes.fill(0xff, 64 + 4, 64 + 5);
  assert.throws(() => classesOf(manifest, state), InputError);
});

test("samples of a class that there is not are refused", () => {
  const names = classesOf(manifest, named("0", "1", "2", "zwölf", "", ""));
  checkKnown(names, [labelled(new Float32Array(6), 3)]);
  assert.throws(() => checkKnown(names, [labelled(new Float32Array(6), 4)]), InputError);
  const ofOneName = { inputs: { x: new Float32Array(6) }, targets: { kind: Int32Array.of(4) } };
  assert.throws(() => checkKnown(names, [ofOneName]), InputError);
  const shares = Float32Array.of(0, 0, 0, 0, 0, 1);
  assert.throws(() => checkKnown(names, [labelled(new Float32Array(6), shares)]), InputError);
});

function discriminant(rows: Float64Array[], labels: number[], shrinkage: Shrinkage): Discriminant {
  const classes = Array.from({ length: Math.max(...labels) + 1 }, (_, label) => label);
  const means = classes.map((label) => meanOf(rows.filter((_, row) => labels[row] === label)));
  return Discriminant.of(rows, labels, means, shrinkage);
}

test("weights and biases of a discriminant are those of scikit-learn", () => {
  const vectors: { shrinkage: Shrinkage; x: number[][]; y: number[]; weights: number[][]; biases: number[] }[] =
    JSON.parse(readFileSync("../tests/runtime/discriminants.json", "utf8"));
  assert.equal(vectors.length, 8);
  for (const { shrinkage, x, y, weights, biases } of vectors) {
    const rows = x.map((row) => Float64Array.from(row));
    const made = discriminant(rows, y, shrinkage);
    const isClose = (a: number, b: number) => Math.abs(a - b) < 1e-6 * (1 + Math.abs(b));
    for (const [label, row] of weights.entries()) {
      const found = made.weights(label);
      assert.ok(row.every((number, i) => isClose(found[i] ?? Number.NaN, number)));
      assert.ok(isClose(made.bias(label), biases[label] ?? Number.NaN));
    }
  }
});

test("what a discriminant cannot be made of is refused", () => {
  const rows = Array.from({ length: 6 }, (_, i) => Float64Array.of(i * i, 1 - i));
  const labels = [0, 0, 0, 1, 1, 1];
  discriminant(rows, labels, 0.1);
  for (const part of [0, -1, 1.1, Number.NaN]) assert.throws(() => discriminant(rows, labels, part), InputError);
  assert.throws(() => discriminant(rows, [0, 0, 0, 0, 0, 0], "auto"), InputError);
  const two = [rows[0], rows[3]].map((row) => row ?? new Float64Array());
  for (const shrinkage of ["auto", 0.5] as const) {
    assert.throws(() => discriminant(two, [0, 1], shrinkage), /do not differ enough/);
  }
});
