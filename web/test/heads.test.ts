import assert from "node:assert/strict";
import { test } from "node:test";
import { ForeignStateError, MemoryStore, ReplayError, ReplayMemory, Trainer } from "../trainer.ts";
import { bytes, collected, floats, program, samplesOf } from "./fixture.ts";
import { inNode } from "./litert.ts";

const runtime = inNode();

async function open(name: string, head: string, store = new MemoryStore()): Promise<Trainer> {
  return await Trainer.open(await program(name, head), runtime, store);
}

test("a head that the host trained infers and is exported as there", async () => {
  const trainer = await open("heads", "frogs");
  await trainer.restore(bytes("trace-a-head-of-two.state"));
  const expected = floats("heads.output");
  const rows = samplesOf("mlp").slice(0, expected.length / 6);
  const outputs = (await trainer.infer(rows.map(({ inputs }) => inputs))).flatMap(({ output = [] }) => [...output]);
  assert.equal(outputs.length, expected.length);
  for (const [i, value] of outputs.entries()) assert.ok(Math.abs(value - (expected[i] ?? Number.NaN)) < 1e-5);
  assert.deepEqual(await trainer.export(), bytes("trace-a-head-of-two.state"));
  assert.deepEqual(await trainer.exportInference(), bytes("heads.plain"));
  await trainer.close();
});

test("a state of another head is refused by both names, also where the two are the same model", async () => {
  const [mine, store] = [samplesOf("mlp").slice(0, 40), new MemoryStore()];
  const trainer = await open("twins", "mine", store);
  await collected(trainer.fit(mine, { epochs: 2, learningRate: 0.02 }));
  const [learned, state] = [await trainer.evaluate(mine), await trainer.export()];
  await trainer.close();
  const again = await open("twins", "mine", store);
  await again.restore();
  assert.deepEqual(await again.evaluate(mine), learned);
  await again.close();
  const other = await open("twins", "yours");
  const before = await other.evaluate(mine);
  await assert.rejects(other.restore(state), (error: Error) => {
    assert.ok(error instanceof ForeignStateError);
    assert.match(error.message, /adam of the head mine there, adam of the head yours here/);
    return true;
  });
  assert.deepEqual(await other.evaluate(mine), before);
  assert.deepEqual((await other.restore(state, "matching")).left, []);
  assert.deepEqual(await other.evaluate(mine), learned);
  await other.close();
});

test("rows that one head remembers are of that head", async () => {
  const store = new MemoryStore();
  const mine = await program("twins", "mine");
  const memory = await ReplayMemory.open(store, mine);
  await memory.add(mine.manifest, null, samplesOf("mlp").slice(0, 5));
  await ReplayMemory.open(store, mine);
  await assert.rejects(ReplayMemory.open(store, await program("twins", "yours")), ReplayError);
});
