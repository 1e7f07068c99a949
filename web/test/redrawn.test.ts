import assert from "node:assert/strict";
import { test } from "node:test";
import { unpack } from "../trainer/state/state-file.ts";
import { InputError, MemoryStore, type Plan, Trainer } from "../trainer.ts";
import { bytes, collected, program, samplesOf } from "./fixture.ts";
import { inNode } from "./litert.ts";

const samples = samplesOf("mlp").slice(0, 44);
const plan: Plan = { epochs: 4, learningRate: 0.01, seed: 3, redraw: true, checkpointEvery: 4 };

async function opened(name: string, store = new MemoryStore()): Promise<Trainer> {
  return await Trainer.open(await program(name), inNode(), store);
}

async function tensors(trainer: Trainer): Promise<[string, Uint8Array][]> {
  return (await unpack(await trainer.export())).tensors.map(({ name, bytes }) => [name, bytes]);
}

for (const name of ["redrawn", "redrawn-by-2"]) {
  test(`it draws what the host draws, and goes on from the same model: ${name}`, async () => {
    const trainer = await opened(name);
    await collected(trainer.fit(samples, plan));
    const rows = samples.slice(0, 8).map((sample) => sample.inputs);
    const outputs = async () => (await trainer.infer(rows)).flatMap((row) => [...(Object.values(row)[0] ?? [])]);
    const before = await outputs();
    const drawn = await trainer.redrawChannels(5);
    const host = new Int32Array(bytes("redrawn.channels").slice().buffer);
    assert.deepEqual(
      [...drawn.values()].flatMap((channels) => [...channels]),
      [...host],
    );
    for (const [i, value] of (await outputs()).entries()) assert.ok(Math.abs(value - (before[i] ?? 0)) < 1e-5);
    const once = await tensors(trainer);
    await trainer.redrawChannels(5);
    assert.deepEqual(await tensors(trainer), once, "again before the next step");
    for (const change of ["dense/change", "heads/change", "second/change"]) {
      const found = once.find(([tensor]) => tensor === change)?.[1];
      assert.ok(
        found?.every((byte) => byte === 0),
        change,
      );
    }
    assert.deepEqual([...(await trainer.redrawChannels(samples)).keys()], [...drawn.keys()]);
    await assert.rejects(trainer.redrawChannels(-1), /whole number from 0 on/);
    await trainer.close();
  });
}

test("a training that died in an epoch, or between two, goes on as it would have", async () => {
  const trainer = await opened("redrawn");
  await collected(trainer.fit(samples, plan));
  const wanted = await tensors(trainer);
  await trainer.close();
  // Epochs have six steps: 8 is inside the second one, 12 between the second and the third.
  for (const [stop, at] of [
    [9, 8],
    [13, 12],
  ]) {
    const store = new MemoryStore();
    const died = await opened("redrawn", store);
    for await (const event of died.fit(samples, plan)) if (event.kind === "step" && event.step === stop) break;
    await died.close();
    const again = await opened("redrawn", store);
    const [started] = await collected(again.fit(samples, plan));
    assert.equal(started?.kind === "started" && started.resumedAt, at);
    assert.deepEqual(await tensors(again), wanted);
    await again.close();
  }
});

test("programs whose channels stay are refused", async () => {
  const trainer = await opened("chosen-variables");
  const refusal = (error: unknown) => error instanceof InputError && /channels-10-redrawn/.test(error.message);
  await assert.rejects(collected(trainer.fit(samples, plan)), refusal);
  await assert.rejects(trainer.redrawChannels(1), refusal);
  await trainer.close();
});
