import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import { type Bytes, utf8 } from "../trainer/bytes.ts";
import { Random } from "../trainer/session/random.ts";
import { TwoGenerations, taken } from "../trainer/state/generations.ts";
import { compare, specOf } from "../trainer/state/interchange.ts";
import { pack, unpack } from "../trainer/state/state-file.ts";
import {
  DamagedStateError,
  DivergedError,
  ForeignStateError,
  NoStateError,
  StateError,
  StateVersionError,
  StorageError,
} from "../trainer.ts";
import { bytes, FailingStore, fillOf, program, tensors } from "./fixture.ts";
import { mutated, mutatedText } from "./mutations.ts";

const NAME = "personal.state";
const own = await program("cnn-stateless");
const { manifest } = own;
const states = specOf(own);
const file = bytes("cnn.state");

/** The same state behind another header, whose digest is right. */
function withHeader(change: (text: string) => string, version = 2): Bytes {
  const length = new DataView(file.buffer).getUint32(12, true);
  const text = Buffer.from(change(Buffer.from(file.subarray(48, 48 + length)).toString("latin1")), "latin1");
  const fixed = Buffer.from(file.subarray(0, 16));
  fixed.writeUInt32LE(version, 8);
  fixed.writeUInt32LE(text.length, 12);
  const digest = createHash("sha256").update(fixed).update(text).digest();
  const padding = Buffer.alloc((64 - ((48 + text.length) % 64)) % 64);
  const data = file.subarray(Math.ceil((48 + length) / 64) * 64);
  return new Uint8Array(Buffer.concat([fixed, digest, text, padding, data]));
}

function generations(store = new FailingStore(), most = 1 << 20): TwoGenerations {
  return new TwoGenerations(store, states, most);
}

test("what the host wrote is read, and written again to the byte", async () => {
  for (const written of [file, bytes("interchange-labelled.state")]) {
    const state = await unpack(written);
    assert.equal(state.generation, 1);
    assert.deepEqual(await pack(state), written);
  }
});

test("what is written here the host reads, and writes again to the byte", async (t) => {
  const python = process.env.PYTHON;
  if (!python) return t.skip("PYTHON is not set");
  const written = "target/written.state";
  writeFileSync(written, await pack({ spec: states, generation: 7, tensors: tensors(manifest, 0.25) }));
  const code = `
import sys; from pathlib import Path; from converter.runtime.state.state_file import pack, unpack
data = Path(sys.argv[1]).read_bytes(); state = unpack(data)
assert pack(state) == data; print(state.generation, all((t == 0.25).all() for t in state.tensors.values() if t.dtype == "float32"))`;
  const said = execFileSync(python, ["-c", code, written], { encoding: "utf8" });
  assert.equal(said.trim(), "7 True");
});

test("every flipped bit and every cut is found", async () => {
  const random = new Random(0n);
  for (let i = 0; i < 1500; i++) {
    const bad = file.slice();
    const at = random.nextInt(bad.length);
    bad[at] = (bad[at] ?? 0) ^ (1 << random.nextInt(8));
    await assert.rejects(unpack(bad), StateError, `byte ${at}`);
  }
  for (let size = 0; size < file.length; size += 97) {
    await assert.rejects(unpack(file.slice(0, size)), DamagedStateError);
  }
  await assert.rejects(unpack(Uint8Array.of(...file, 0)), DamagedStateError);
});

test("headers that lie are found behind a good digest", async () => {
  assert.deepEqual(
    withHeader((text) => text),
    file,
  );
  const lies: [string, string][] = [
    ['"offset":0', '"offset":64'],
    ['"generation":1', '"generation":0'],
    ['"generation":1', '"generation":9007199254740992'],
    ['"generation":1', '"generation":"1"'],
    ['"generation":1', '"generation":1,"more":1'],
    ["pocketune-state/2", "pocketune-state/1"],
    ['"float32"', '"float64"'],
    ['"float32"', '"int32"'],
    ['"shape":[', '"shape":[0,'],
    ['"shape":[', '"shape":[-1,-1,'],
    ['"sha256":"', '"sha256":"0'],
    ['"view":[', '"view":[["slice",0,0,1],'],
    ['"view":[', '"view":[["flip",0],'],
    ['"forward":"', '"forward":"x'],
    ['"slot":false', '"slot":0'],
  ];
  const text = Buffer.from(file).toString("latin1");
  for (const [from, to] of lies) {
    assert.ok(text.includes(from), from);
    const lie = withHeader((header) => header.replace(from, to));
    // The data of an int32 are those of a float32: whether it is the program's is for others to say.
    if (to === '"int32"') await unpack(lie);
    else await assert.rejects(unpack(lie), DamagedStateError, `${from} -> ${to}`);
  }
  await assert.rejects(unpack(withHeader((header) => header, 3)), StateVersionError);
  const other = specOf(await program("mlp-stateless"));
  await assert.rejects(
    taken(file, other, () => false),
    ForeignStateError,
  );
});

test("four thousand damaged state files", async () => {
  const random = new Random(2n);
  for (let i = 0; i < 4000; i++) {
    const isText = i % 2 === 0;
    const bad = isText
      ? withHeader((header) => Buffer.from(mutatedText(utf8(header), random)).toString("latin1"))
      : mutated(file, random, 64);
    try {
      compare(await unpack(bad), states);
      assert.ok(isText || Buffer.compare(bad, file) === 0, "a state with other bytes was taken");
    } catch (error) {
      if (!(error instanceof StateError)) throw error;
    }
  }
});

test("two generations are kept", async () => {
  const kept = generations();
  await assert.rejects(kept.load(), NoStateError);
  for (const value of [1, 2, 3]) assert.equal(await kept.save(tensors(manifest, value)), value);
  assert.equal(fillOf((await kept.load()).state.tensors), 3);
  assert.equal(fillOf((await kept.previous())?.tensors ?? []), 2);
});

test("a damaged state falls back to the older one, which is not lost by saving", async () => {
  const store = new FailingStore();
  const kept = generations(store);
  for (const value of [1, 2]) await kept.save(tensors(manifest, value));
  const newest = (await store.read(NAME)) ?? new Uint8Array();
  newest[newest.length - 1] = 0xff;
  await store.write({ [NAME]: newest });
  const loaded = await kept.load();
  assert.equal(fillOf(loaded.state.tensors), 1);
  assert.match(loaded.lost ?? "", /altered/);
  assert.equal(await kept.save(tensors(manifest, 5)), 2);
  assert.equal(fillOf((await kept.previous())?.tensors ?? []), 1);
  await store.write({ [NAME]: null });
  assert.equal((await kept.load()).lost, "it is missing");
});

test("what is not ours is refused, not overwritten, and set aside", async () => {
  const other = withHeader((header) => {
    const zeros = header.replace(manifest.graphHash, "0".repeat(64));
    return zeros.replace(/"forward":"[0-9a-f]+"/, `"forward":"${"0".repeat(16)}"`);
  });
  const cases: [Bytes, new (message: string) => Error][] = [
    [other, ForeignStateError],
    [withHeader((header) => header, 9), StateVersionError],
    [utf8("a letter"), DamagedStateError],
  ];
  for (const [foreign, type] of cases) {
    const store = new FailingStore();
    const kept = generations(store);
    await store.write({ [NAME]: foreign });
    await assert.rejects(kept.load(), type);
    await assert.rejects(kept.checkReplaceable(), type);
    await assert.rejects(kept.save(tensors(manifest, 1)), type);
    assert.deepEqual(await store.read(NAME), foreign);
    await kept.setAside();
    assert.deepEqual(await store.read(`${NAME}.unusable`), foreign);
    assert.equal(await kept.save(tensors(manifest, 1)), 1);
  }
});

test("NaN is never written, and a full storage changes nothing", async () => {
  const store = new FailingStore();
  const kept = generations(store);
  await kept.save(tensors(manifest, 1));
  for (const bad of [Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]) {
    await assert.rejects(kept.save(tensors(manifest, bad)), DivergedError);
  }
  store.isFull = true;
  await assert.rejects(kept.save(tensors(manifest, 2)), StorageError);
  assert.equal(fillOf((await kept.load()).state.tensors), 1);
  await assert.rejects(generations(new FailingStore(), 1000).save(tensors(manifest, 1)), /three times/);
});
