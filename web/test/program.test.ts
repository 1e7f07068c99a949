import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { utf8 } from "../trainer/bytes.ts";
import { readManifest } from "../trainer/manifest/manifest-checks.ts";
import { metadataOf } from "../trainer/program/heads.ts";
import { ModelMetadata } from "../trainer/program/model-metadata.ts";
import { Random } from "../trainer/session/random.ts";
import { DamagedProgramError, NewerProgramError, PocketuneError, Program, ProgramError } from "../trainer.ts";
import { bytes, manifestOf, program } from "./fixture.ts";
import { mutated, mutatedText } from "./mutations.ts";

const whole = bytes("mlp-variables.tflite");
const several = bytes("heads.tflite");

/** A changed program whose checksum is right. */
function resealed(change: (text: string) => string, of = whole): Uint8Array {
  const text = change(Buffer.from(of).toString("latin1"));
  const start = text.indexOf("pocketune-sha256:") + "pocketune-sha256:".length;
  const parts = (digits: string) => Buffer.from(text.slice(0, start) + digits + text.slice(start + 64), "latin1");
  return parts(
    createHash("sha256")
      .update(parts("0".repeat(64)))
      .digest("hex"),
  );
}

test("programs of the compiler open", async () => {
  for (const name of [
    "mlp-variables",
    "mlp-stateless",
    "cnn-by-4-variables",
    "cnn-by-4-stateless",
    "two-lean",
    "chosen-stateless",
  ]) {
    const { manifest } = await program(name);
    assert.equal(manifest.microBatch, name.includes("by-4") ? 4 : 8);
    assert.equal(manifest.isStateless, name.endsWith("stateless"));
    assert.equal(manifest.batch, 8);
  }
  const [one, other] = [await program("mlp-variables"), await program("mlp-stateless")];
  assert.equal(one.manifest.graphHash, other.manifest.graphHash);
  assert.equal(one.manifest.classes, 4);
  assert.equal(one.initialState().length, one.manifest.stateTensors.length);
});

test("every flipped bit and every cut is found", async () => {
  const random = new Random(0n);
  for (let i = 0; i < 1000; i++) {
    const bad = whole.slice();
    const at = random.nextInt(bad.length);
    bad[at] = (bad[at] ?? 0) ^ (1 << random.nextInt(8));
    await assert.rejects(Program.open(bad), DamagedProgramError, `byte ${at}`);
  }
  for (let size = 0; size < whole.length; size += 997) {
    await assert.rejects(Program.open(whole.subarray(0, size)), DamagedProgramError);
  }
  await assert.rejects(Program.open(Uint8Array.of(...whole, 0)), DamagedProgramError);
  await assert.rejects(Program.open(utf8("no program")), /it has no checksum; a model that was exported has none/);
});

test("a changed program with a good checksum is checked all the same", async () => {
  await Program.open(resealed((text) => text));
  await assert.rejects(
    Program.open(resealed((t) => t.replace("pocketune.manifest", "pocketune.manifesT"))),
    /no manifest/,
  );
  const lacking = resealed((text) => text.replace("pocketune.initial/a/b", "pocketune.initial/a/X"));
  await assert.rejects(Program.open(lacking), DamagedProgramError);
});

test("one head of a file of several is a program, with what is of the other left out", async () => {
  const [birds, frogs] = [await Program.open(several, "birds"), await Program.open(several, "frogs")];
  assert.deepEqual([birds.manifest.classes, frogs.manifest.classes], [4, 6]);
  assert.deepEqual([birds.stored("infer_features"), frogs.stored("features")], ["birds/infer_features", "features"]);
  assert.notDeepEqual(birds.initialState(), frogs.initialState());
  const alone = await program("mlp-variables");
  assert.deepEqual([alone.head, alone.stored("train")], [undefined, "train"]);
});

test("a file of several heads is refused without one, and a head that is not there, by what there is", async () => {
  await assert.rejects(Program.open(several), /several heads: birds, frogs. Say which: Program.open\(bytes, "birds"\)/);
  await assert.rejects(Program.open(several, "frog"), /it has no head 'frog': it has birds, frogs/);
  await assert.rejects(Program.open(whole, "birds"), /it has one head, and no head 'birds': leave the head out/);
  for (const [names, said] of [
    ['["birds","frog/"]', /list of heads is damaged/],
    ['["birds", frogs"]', /list of heads is damaged/],
    ["[]", /list of heads is damaged/],
    ['["birds", "foxes"]', /no head 'frogs': it has birds, foxes/],
  ] as const) {
    const damaged = resealed((text) => text.replace('["birds", "frogs"]', names.padEnd(18)), several);
    await assert.rejects(Program.open(damaged, "frogs"), said);
  }
  const lacking = resealed((text) => text.replaceAll("pocketune.initial/frogs", "pocketune.initial/foxes"), several);
  await Program.open(lacking, "birds");
  await assert.rejects(Program.open(lacking, "frogs"), DamagedProgramError);
});

test("a newer format is told apart from damage", () => {
  const text = manifestOf("mlp-variables");
  for (const newer of [text.replace("pocketune/1", "pocketune/2"), '{"format":"pocketune/2","all":"new"}']) {
    assert.throws(() => readManifest(utf8(newer)), NewerProgramError);
  }
});

test("good programs that a browser cannot train are refused by what to build", async () => {
  await assert.rejects(program("mlp-split"), /its state is "split".*build it with target="web"/);
  await assert.rejects(program("trains-only"), /no signature "infer".*signatures=\("train", "infer", ...\)/);
});

test("certificates hold for the engine's version", () => {
  const good =
    '{"on":"web","engine":"LiteRT.js","version":"2.5.3","driver":"WASM","date":"2026-11-22T19:34:58Z","steps":10,' +
    '"ok":true,"whole":true,"precision":"float32","loss_error":1e-7,"update_error":2e-7,"output_error":null,' +
    '"floor":null,"failures":[]}';
  const plain = manifestOf("mlp-stateless");
  const certified = plain.replace('"certificates":[]', `"certificates":[${good}]`);
  const read = (text: string) => readManifest(utf8(text));
  assert.ok(read(certified).isCertified("web", "LiteRT.js", "2.5.3"));
  assert.ok(!read(certified).isCertified("web", "LiteRT.js", "2.6.0"));
  assert.ok(!read(certified).isCertified("gpu", "LiteRT.js", "2.5.3"));
  assert.ok(!read(plain).isCertified("web", "LiteRT.js", "2.5.3"));
});

test("what is no manifest at all is refused in words", () => {
  const deep = "[".repeat(1_000_000);
  for (const text of ["", "null", "[]", "{}", '"x"', deep, '{"a":NaN}', "\ud800", `{"labels":${deep}`]) {
    assert.throws(() => readManifest(utf8(text)), DamagedProgramError, text.slice(0, 20));
  }
  assert.throws(() => readManifest(Uint8Array.of(0x22, 0xff, 0x22)), DamagedProgramError);
  assert.throws(() => readManifest(new Uint8Array((4 << 20) + 1)), /more than/);
});

/** Hostile files: whatever comes, there is an answer or a typed error. */
test("six thousand flatbuffers, four thousand manifests and as many lists of heads", () => {
  const random = new Random(1n);
  const entry = utf8(manifestOf("mlp-by-2-stateless"));
  let accepted = 0;
  const attempt = (open: () => unknown) => {
    try {
      open();
      accepted++;
    } catch (error) {
      if (!(error instanceof ProgramError)) throw error;
      assert.ok(error instanceof PocketuneError && error.message.length < 500);
    }
  };
  for (let i = 0; i < 6000; i++)
    attempt(() => new ModelMetadata(mutated(whole, random, 4)).entries("pocketune.initial/"));
  for (let i = 0; i < 4000; i++) attempt(() => readManifest(mutatedText(entry, random)));
  const names = utf8('["birds", "frogs"]');
  for (let i = 0; i < 4000; i++)
    attempt(() => metadataOf(new Map([["pocketune.heads", mutatedText(names, random)]]), "frogs"));
  assert.ok(accepted < 14_000);
});
