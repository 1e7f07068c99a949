import assert from "node:assert/strict";
import { test } from "node:test";
import { Batch } from "../trainer/session/batches.ts";
import { ofFewestTokens } from "../trainer/session/lengths.ts";
import {
  DamagedStateError,
  InputError,
  labelled,
  MemoryStore,
  ReplayMemory,
  RuntimeFailedError,
  Trainer,
  type Values,
} from "../trainer.ts";
import { bytes, collected, floats, program, samplesOf, textsOf } from "./fixture.ts";
import { inNode } from "./litert.ts";

const RATE = 0.02;
const runtime = inNode();

async function open(name: string): Promise<Trainer> {
  return await Trainer.open(await program(name), runtime, new MemoryStore());
}

/** The largest difference of two rows of numbers. */
function distance(a: ArrayLike<number>, b: ArrayLike<number>): number {
  assert.equal(a.length, b.length);
  return Array.from(a).reduce((most, value, i) => Math.max(most, Math.abs(value - (b[i] ?? Number.NaN))), 0);
}

/** All numbers of a state, in order. */
async function numbers(trainer: Trainer): Promise<Float32Array> {
  const file = await trainer.export();
  await trainer.restore(file);
  const { unpack } = await import("../trainer/state/state-file.ts");
  const { tensors } = await unpack(file);
  const all = tensors.map(({ bytes, dtype }) => {
    const { buffer } = bytes.slice();
    return dtype === "float32" ? new Float32Array(buffer) : Float32Array.from(new Int32Array(buffer));
  });
  return Float32Array.from(all.flatMap((each) => [...each]));
}

for (const model of ["mlp", "cnn", "mlp-by-2", "cnn-by-4", "two"]) {
  for (const state of ["variables", "stateless"]) {
    test(`${model}-${state}: 50 steps equal the host's, and states go both ways`, async () => {
      const trainer = await open(`${model}-${state}`);
      const size = model === "two" ? floats("two.size") : null;
      const samples = samplesOf(model).map((sample, i) =>
        size
          ? { ...sample, targets: { kind: sample.targets.y ?? new Int32Array(), size: size.slice(2 * i, 2 * i + 2) } }
          : sample,
      );
      const first = await trainer.infer(samples.slice(0, 8).map((sample) => sample.inputs));
      const names = trainer.program.manifest.infer.outputs.map((spec) => spec.name);
      const outputs = names.flatMap((name) => first.flatMap((row) => [...(row[name] ?? [])]));
      assert.ok(distance(outputs, floats(`${model}.output`)) < 1e-5);
      const plan = { epochs: 1, shuffle: false, learningRate: RATE };
      const losses: number[] = [];
      for await (const event of trainer.fit(samples, plan)) if (event.kind === "step") losses.push(event.loss);
      assert.ok(distance(losses, floats(`${model}.losses`)) < 1e-5);
      assert.ok(distance(await numbers(trainer), floats(`${model}.trained`)) < 1e-5);
      // The host's own state, taken and given back to the byte; with it the plain model is the host's, to the byte.
      await trainer.restore(bytes(`${model}.state`));
      assert.deepEqual(await trainer.export(), bytes(`${model}.state`));
      assert.deepEqual(await trainer.exportInference(), bytes(`${model}.plain`));
      await trainer.close();
    });
  }
}

for (const [program, state, plain, what] of [
  ["filed-stateless", "filed", "filed", "of a file"],
  ["redrawn-filed", "redrawn-filed", "redrawn-filed", "of a file whose channels are redrawn"],
  ["rows", "rows", "rows", "where it is hard to resize"],
  ["int8", "trace-weights-in-int8", "int8", "of weights in int8"],
] as const) {
  test(`${what} the exported model is the host's to the byte`, async () => {
    const trainer = await open(program);
    await trainer.restore(bytes(`${state}.state`));
    assert.deepEqual(await trainer.exportInference(), bytes(`${plain}.plain`));
    await trainer.close();
  });
}

test("a seed gives the training of the host", async () => {
  const trainer = await open("mlp-lean");
  const losses: number[] = [];
  for await (const event of trainer.fit(samplesOf("mlp"), { epochs: 2, seed: 5 })) {
    if (event.kind === "step") losses.push(event.loss);
  }
  assert.equal(losses.length, 100);
  assert.ok(distance(losses, floats("mlp.fit")) < 1e-5);
});

test("classes of means, one of them added here, are those of the host", async () => {
  const trainer = await open("classes");
  const samples = samplesOf("mlp");
  const rows = samples.slice(0, 5).map((sample) => sample.inputs);
  const others = rows.map(({ x }) => ({ x: Float32Array.from(x ?? [], (number) => -number) }));
  const own = (await trainer.classes()).filter((name) => name !== null);
  await assert.rejects(trainer.addClass("zwölf", others), /class means/);
  await trainer.setClassMeans(samples);
  assert.equal(await trainer.addClass("zwölf", others), own.length);
  const logits = (await trainer.infer([...rows, ...others])).flatMap((row) => [...(row.output ?? [])]);
  assert.ok(distance(logits, floats("classes.output")) < 1e-4);
  const state = await trainer.export();
  await trainer.restore(bytes("classes.state"));
  assert.deepEqual(await trainer.classes(), [...own, "zwölf", null]);
  const there = (await trainer.infer([...rows, ...others])).flatMap((row) => [...(row.output ?? [])]);
  assert.ok(distance(there, logits) < 1e-4);
  await trainer.setClassMeans(
    [...samples, ...others.map((inputs) => ({ inputs, targets: { y: Int32Array.of(own.length) } }))],
    "auto",
  );
  assert.deepEqual(await trainer.classes(), [...own, "zwölf", null]);
  const shrunk = (await trainer.infer([...rows, ...others])).flatMap((row) => [...(row.output ?? [])]);
  assert.ok(distance(shrunk, logits) > 1);
  await assert.rejects(trainer.addClass("mehr", others), /class means/);
  await trainer.restore(state);
  await trainer.renameClass("zwölf", "dreizehn");
  assert.deepEqual(await trainer.classes(), [...own, "dreizehn", null]);
  await trainer.addClass("leer");
  await assert.rejects(trainer.addClass("mehr"), new RegExp(`room for ${own.length + 2} classes`));
  await trainer.forgetClass("leer");
  const free = { inputs: samples[0]?.inputs ?? {}, targets: { y: Int32Array.of(own.length + 1) } };
  await assert.rejects(trainer.evaluate([free]), InputError);
  await assert.rejects(trainer.forgetClass(own[0] ?? ""), /model's own/);
  await assert.rejects(trainer.renameClass("dreizehn", own[0] ?? ""), /already/);
  await assert.rejects(trainer.renameClass("leer", "x"), /no class 'leer'/);
  await trainer.close();
});

test("class means of one-hot rows are those of the host", async () => {
  const trainer = await open("one_hot");
  const { length } = await trainer.classes();
  const samples = samplesOf("mlp").map(({ inputs, targets: { y } }) => ({
    inputs,
    targets: { y: Float32Array.from({ length }, (_, label) => Number(label === y?.[0])) },
  }));
  await trainer.setClassMeans(samples);
  const logits = (await trainer.infer(samples.slice(0, 5).map(({ inputs }) => inputs))).flatMap((row) => [
    ...(row.output ?? []),
  ]);
  assert.ok(distance(logits, floats("one_hot.output")) < 1e-4);
  const both = Float32Array.from({ length }, (_, label) => (label < 2 ? 0.5 : 0));
  await assert.rejects(
    trainer.setClassMeans([...samples, { inputs: samples[0]?.inputs ?? {}, targets: { y: both } }]),
    InputError,
  );
  await trainer.close();
});

test("rows of a memory never train for another class than the one that they came under", async () => {
  const trainer = await open("classes");
  const store = new MemoryStore();
  const memory = await ReplayMemory.open(store, await program("classes"), { heldOut: 0 });
  const added = await trainer.addClass("zwölf");
  const rows = samplesOf("mlp")
    .slice(0, 5)
    .map(({ inputs }) => ({ inputs, targets: { y: Int32Array.of(added) } }));
  await trainer.remember(memory, rows);
  await trainer.renameClass("zwölf", "dreizehn");
  await assert.rejects(trainer.remember(memory, rows), /is of 'dreizehn' now/);
  await memory.rename(added, "dreizehn");
  await trainer.remember(memory, rows);
  await trainer.forgetClass("dreizehn");
  await assert.rejects(collected(trainer.fit(samplesOf("mlp"), {}, { memory })), /is of no class now/);
  assert.equal(await trainer.addClass("vierzehn"), added);
  await assert.rejects(collected(trainer.fit(rows, {}, { memory })), /is of 'vierzehn' now/);
  await memory.forget(added);
  await trainer.remember(memory, rows);
  assert.deepEqual([...memory.counts()], [[added, 5]]);
  await trainer.close();
});

test("slots that copy weights, and class means far from zero, are those of the host", async () => {
  const trainer = await open("moved");
  const samples = samplesOf("mlp").map(({ inputs, targets }) => ({ inputs, targets }));
  const moved = (by: (number: number) => number) =>
    samples.map(({ inputs, targets }) => ({ inputs: { x: Float32Array.from(inputs.x ?? [], by) }, targets }));
  const logitsOf = async (given: { inputs: { x?: Values } }[]) =>
    (await trainer.infer(given.slice(0, 5).map(({ inputs }) => ({ x: inputs.x ?? new Float32Array() })))).map((row) => [
      ...(row.output ?? []),
    ]);
  const farLabels = async () => (await logitsOf(moved((x) => -x))).map((row) => row.indexOf(Math.max(...row)));
  const training = () => collected(trainer.fit(samples, { epochs: 1, shuffle: false, checkpointEvery: 0 }));
  await trainer.setClassMeans(samples);
  await training(); // of which nothing is left by class means: the host begins with these
  await trainer.setClassMeans(samples);
  const others = moved((x) => -x).slice(0, 5);
  await trainer.addClass(
    "zwölf",
    others.map((sample) => sample.inputs),
  );
  await training();
  assert.ok(distance((await logitsOf(samples)).flat(), floats("moved.output")) < 1e-4);
  await trainer.reset();
  const far = [...new Int32Array(bytes("moved.labels").buffer)];
  await trainer.setClassMeans(moved((x) => x + 300));
  assert.deepEqual(await farLabels(), far);
  const farther = moved((x) => x + 302).slice(0, 5);
  await trainer.addClass(
    "far",
    farther.map((sample) => sample.inputs),
  );
  await trainer.forgetClass("far");
  assert.deepEqual(await farLabels(), far);
  await assert.rejects(trainer.setClassMeans(moved((x) => x + 30_000)), /Normalise the input of the last layer/);
  await trainer.close();
});

test("channels are those that the host chooses", async () => {
  for (const state of ["variables", "stateless"]) {
    const trainer = await open(`chosen-${state}`);
    const chosen = await trainer.chooseChannels(samplesOf("mlp"));
    assert.deepEqual(chosen.get("a/w"), new Int32Array(bytes("chosen.channels").buffer));
    const losses: number[] = [];
    for await (const event of trainer.fit(samplesOf("mlp"), { epochs: 1, shuffle: false, learningRate: RATE })) {
      if (event.kind === "step") losses.push(event.loss);
    }
    assert.ok(distance(losses, floats("chosen.losses")) < 1e-5);
    await assert.rejects(trainer.chooseChannels(samplesOf("mlp")), InputError);
    await trainer.chooseChannels(samplesOf("mlp"), true);
    await assert.rejects(trainer.restore(bytes("beyond.state")), DamagedStateError);
    await trainer.restore(bytes("chosen.state"));
    await trainer.close();
  }
});

test("adapters are merged on the host", async () => {
  const trainer = await open("adapted");
  await assert.rejects(trainer.exportInference(), /only the host merges it/);
});

test("few rows take the signature that just holds them", async () => {
  const trainer = await open("cnn-stateless");
  const rows = samplesOf("cnn")
    .slice(0, 13)
    .map((sample) => sample.inputs);
  const all = await trainer.infer(rows);
  for (const count of [1, 5, 6]) {
    const some = await trainer.infer(rows.slice(0, count));
    for (const [i, row] of some.entries()) assert.ok(distance(row.output ?? [], all[i]?.output ?? []) < 1e-6);
  }
});

for (const name of ["lengths", "lengths-stateless"]) {
  test(`of a text as much is inferred as there is of it, whichever signature takes it: ${name}`, async () => {
    const trainer = await open(name);
    const text = textsOf("texts")[0]?.inputs.x ?? new Int32Array();
    const inferred = async (tokens: number) => (await trainer.infer([{ x: text.slice(0, tokens) }]))[0]?.output ?? [];
    const whole = await inferred(12);
    for (const tokens of [1, 4, 5, 8, 11]) {
      const some = await inferred(tokens);
      assert.equal(some.length, (whole.length / 12) * tokens);
      assert.ok(distance(some, whole.slice(0, some.length)) < 1e-4);
    }
    await assert.rejects(
      trainer.infer([{ x: new Int32Array(13) }]),
      /13 tokens, and rows of this program have 1 to 12/,
    );
    await trainer.close();
  });
}

test("texts take the signature of the fewest tokens that hold their labels", async () => {
  const { manifest } = await program("lengths");
  const text = (tokens: number, asked: number) => ({
    inputs: { x: new Int32Array(tokens).fill(1) },
    targets: { y: Int32Array.from({ length: tokens }, (_, i) => (i < asked ? i : -1)) },
  });
  for (const [rows, expected] of [
    [[text(12, 4)], "train_length_4"],
    [[text(3, 0)], "train_length_4"],
    [[text(12, 2), text(5, 5)], "train_length_8"],
    [[text(4, 4), text(12, 9)], "train"],
  ] as const) {
    const [name, batch] = ofFewestTokens(manifest, "train", new Batch(rows, [1, 1]));
    assert.equal(name, expected);
    const [first] = batch.rows;
    assert.equal(first?.inputs.x?.length, first?.targets.y?.length);
  }
});

test("undo and a short batch in the real runtime", async () => {
  const trainer = await open("mlp-variables");
  const samples = samplesOf("mlp").slice(0, 11);
  const before = await trainer.evaluate(samples);
  await collected(trainer.fit(samples, { epochs: 4, learningRate: RATE }, { heldOut: samples }));
  const after = await trainer.evaluate(samples);
  assert.ok(after.loss < before.loss);
  await trainer.rollback();
  assert.deepEqual(await trainer.evaluate(samples), before);
  await trainer.rollback();
  assert.deepEqual(await trainer.evaluate(samples), after);
  assert.equal((await trainer.infer([labelled(new Float32Array(36), 0).inputs])).length, 1);
  await trainer.close();
});

test("what the runtime does not take is told in a sentence", async () => {
  const whole = await program("mlp-stateless");
  const broken = Object.create(whole, { data: { value: new Uint8Array(100) } });
  await assert.rejects(Trainer.open(broken, runtime, new MemoryStore()), RuntimeFailedError);
});
