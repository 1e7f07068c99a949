import assert from "node:assert/strict";
import { test } from "node:test";
import { taken } from "../trainer/state/generations.ts";
import { compare, specOf } from "../trainer/state/interchange.ts";
import { unpack } from "../trainer/state/state-file.ts";
import { ForeignStateError, MemoryStore, StateError, Trainer } from "../trainer.ts";
import { bytes, program, scripted } from "./fixture.ts";

/** A program and a state, and what the host makes of them; `tensors` is a state file of what is taken over. */
interface Verdict {
  readonly program: string;
  readonly state: string;
  readonly differences: string[];
  readonly adopted: string[];
  readonly left: string[];
  readonly proven: boolean;
  readonly refused: boolean;
  readonly tensors: string;
}

const verdicts: Verdict[] = JSON.parse(new TextDecoder().decode(bytes("interchange.json")));
const OTHER = "another part of square trains there";

/** A trainer whose store holds a state of the host's. */
async function withState(name: string, store = new MemoryStore()): Promise<Trainer> {
  await store.write({ "personal.state": bytes(name) });
  return await Trainer.open(await program("interchange-stateless"), scripted(), store);
}

test("every pair is judged as on the host, and laid out as there", async () => {
  assert.ok(verdicts.length > 45);
  assert.ok(verdicts.some(({ program, refused }) => program === "recorded-b12069f6" && !refused));
  for (const expected of verdicts) {
    const what = `${expected.state} in ${expected.program}`;
    const spec = specOf(await program(expected.program));
    const found = compare(await unpack(bytes(expected.state)), spec);
    assert.deepEqual(found.differences, expected.differences, what);
    assert.deepEqual(found.adopted, expected.adopted, what);
    assert.deepEqual(found.left, expected.left, what);
    assert.equal(found.isProven, expected.proven, what);
    assert.deepEqual(found.tensors, (await unpack(bytes(expected.tensors))).tensors, what);
    const restored = taken(bytes(expected.state), spec, () => false);
    if (expected.refused) await assert.rejects(restored, StateError, what);
    else assert.deepEqual((await restored).tensors, found.tensors, what);
  }
});

test("a state of another build is restored, said to be whole, and saved again", async () => {
  const trainer = await withState("interchange-base.state");
  const restored = await trainer.restore();
  assert.deepEqual([restored.unproven, restored.left, restored.differences], [null, [], []]);
  assert.equal(restored.adopted.length, trainer.program.manifest.stateTensors.length);
  assert.equal(await trainer.save(), 2);
});

test("an old state is restored, and it is said what cannot be told", async () => {
  const trainer = await withState("interchange-base-old.state");
  assert.match((await trainer.restore()).unproven ?? "", /its tensors fit this program/);
  assert.equal(await trainer.save(), 2);
  assert.equal((await trainer.restore()).unproven, null);
});

test("of another program what matches is taken over where the page asks for it", async () => {
  const trainer = await withState("interchange-part.state");
  const isRefused = (error: unknown) =>
    error instanceof ForeignStateError && error.message.includes(`${OTHER}. Restored with adopt`);
  await assert.rejects(trainer.restore(), isRefused);
  await assert.rejects(trainer.restore(bytes("interchange-part.state")), isRefused);
  await assert.rejects(trainer.save(), ForeignStateError);
  const restored = await trainer.restore(undefined, "matching");
  assert.deepEqual(restored.differences, [OTHER]);
  assert.ok(restored.left.includes("square") && restored.adopted.includes("head/w"));
  assert.equal(await trainer.save(), 2);
  // There is nothing of this program to go back to but what was built.
  assert.equal((await trainer.rollback()).generation, 3);
});

test("nothing that matches is no state of the program", async () => {
  const trainer = await withState("mlp.state");
  await assert.rejects(trainer.restore(undefined, "matching"), /no weight of it matches/);
});

test("a larger state of another program is kept where parts of it were taken over", async () => {
  const store = new MemoryStore();
  const trainer = await withState("interchange-larger.state", store);
  assert.deepEqual((await trainer.restore(undefined, "matching")).differences, ["bank trains there and is not here"]);
  assert.equal(await trainer.save(), 2);
  assert.deepEqual(await store.read("personal.state.previous"), bytes("interchange-larger.state"));
});

test("a larger state of another program, of an older version, is not overwritten", async () => {
  const store = new MemoryStore();
  const trainer = await withState("interchange-larger-old.state", store);
  await assert.rejects(trainer.save(), ForeignStateError);
  assert.deepEqual(await store.read("personal.state"), bytes("interchange-larger-old.state"));
});
