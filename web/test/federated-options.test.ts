import assert from "node:assert/strict";
import { test } from "node:test";
import { federatedIdentity } from "../federated/identity.ts";
import type { Tensor } from "../federated/npy.ts";
import { regexOf } from "../federated/patterns.ts";
import { adopt, Participant } from "../federated.ts";
import { type Bytes, MemoryStore, Program, Trainer } from "../trainer.ts";
import { inNode } from "./litert.ts";
import { assertClose, file, rows, tensorsOf } from "./recorded.ts";

type Listed = Parameters<typeof tensorsOf>[0];

interface Case {
  readonly personal: string[];
  readonly bytes: number;
  readonly norm: number;
  readonly rounds: Record<string, number>[];
  readonly sent: Listed;
  readonly arrays: Listed;
  readonly own: Listed;
  readonly loss: number;
  readonly judged: number;
}

const recorded: {
  cases: Record<string, Case>;
  room: { sent: Listed; before: number; after: number };
  patterns: [string, string, boolean][];
} = JSON.parse(new TextDecoder().decode(file("options.json")));
const runtime = inNode();
const program = await Program.open(file("options.tflite"));
const head = recorded.cases["a personal head"] ?? assert.fail();

async function participant(personal: string[], store = new MemoryStore()): Promise<Participant> {
  return await Participant.open(program, runtime, store, {}, personal);
}

function configOf(own: Participant, number: number, more: Record<string, number> = {}) {
  const asked = {
    epochs: 2n,
    "learning-rate": 0.05,
    "server-round": BigInt(number),
    ...Object.fromEntries(
      Object.entries(more).map(([name, value]) => [name, name === "steps" ? BigInt(value) : value]),
    ),
  };
  return new Map<string, string | number | bigint>([["program", own.identity], ...Object.entries(asked)]);
}

/** What is personal of a state. */
function mineIn(own: Participant, state: ReadonlyMap<string, Bytes>): Map<string, Tensor> {
  return new Map(
    [...own.exchange.personal].map(([name, one]) => [name, one.sent(state.get(one.tensor) ?? assert.fail())]),
  );
}

/** What is personal in a state file. */
async function mineInFile(own: Participant, state: Bytes | null): Promise<Map<string, Tensor>> {
  const trainer = await Trainer.open(program, runtime, new MemoryStore());
  await trainer.restore(state ?? assert.fail());
  const found = mineIn(own, await trainer.tensors());
  await trainer.close();
  return found;
}

for (const [called, wanted] of Object.entries(recorded.cases)) {
  test(`rounds are those of Python's client: ${called}`, async () => {
    const own = await participant(wanted.personal);
    assert.equal(own.bytes, wanted.bytes);
    assert.ok(Math.abs(own.exchange.norm / wanted.norm - 1) < 1e-6);
    assert.deepEqual([...own.personal], Object.keys(wanted.own));
    let [arrays, kept]: [ReadonlyMap<string, Tensor>, ReadonlyMap<string, Bytes>] = [tensorsOf(wanted.sent), new Map()];
    let [loss, judged] = [0, 0];
    for (const [k, more] of wanted.rounds.entries()) {
      const config = configOf(own, k + 1, more);
      const trained = await own.train(arrays, config, rows(), kept);
      [arrays, kept, loss] = [trained.arrays, trained.kept, Number(trained.figures.loss)];
      judged = Number((await own.evaluate(arrays, config, rows(), kept)).loss);
    }
    assertClose(arrays, tensorsOf(wanted.arrays), 1e-5);
    assert.notDeepEqual(arrays, tensorsOf(wanted.sent));
    assertClose(mineIn(own, kept), tensorsOf(wanted.own), 1e-5);
    for (const [is, was] of [
      [loss, wanted.loss],
      [judged, wanted.judged],
    ] as const)
      assert.ok(Math.abs(is - was) < 1e-4, `${is} and ${was}`);
    await own.close();
  });
}

test("what is personal stays, is kept for the next tab, and is taken over with the base of the others", async () => {
  const store = new MemoryStore();
  const own = await participant(head.personal, store);
  assert.equal(await own.own(), null);
  const first = await own.train(tensorsOf(head.sent), configOf(own, 1), rows(), new Map());
  const mine = mineIn(own, first.kept);
  assertClose(await mineInFile(own, await own.own()), mine, 0);
  await own.close();
  const again = await participant(head.personal, store);
  const moved = new Map(
    [...first.arrays].map(([name, { shape, numbers }]) => [name, { shape, numbers: numbers.map((n) => n + 1) }]),
  );
  await again.evaluate(moved, configOf(again, 1), rows(), new Map());
  const shared = (await again.shared()) ?? assert.fail();
  const trainer = await Trainer.open(program, runtime, new MemoryStore());
  await trainer.restore(shared);
  assertClose(again.exchange.sent(await trainer.tensors(), false), moved, 0);
  assertClose(mineIn(again, await trainer.tensors()), mine, 0);
  for await (const _ of trainer.fit(rows(), { epochs: 2, learningRate: 0.05 }));
  const trained = mineIn(again, await trainer.tensors());
  assert.notDeepEqual(trained, mine);
  await adopt(trainer, shared, "both", (name) => again.personal.has(name));
  assertClose(again.exchange.sent(await trainer.tensors(), false), moved, 0);
  assertClose(mineIn(again, await trainer.tensors()), trained, 0);
  await Promise.all([again.close(), trainer.close()]);
});

test("a server of other patterns is refused, and so are patterns that leave nothing", async () => {
  const [own, plain] = [await participant(head.personal), await participant([])];
  const whole = tensorsOf(recorded.cases["slots at home"]?.sent ?? assert.fail());
  const refused = (of: Participant, arrays: ReadonlyMap<string, Tensor>) =>
    of.train(arrays, configOf(of, 1), rows(), new Map());
  await assert.rejects(refused(own, whole), /'head\/b', which is personal here and stays: both need the same patterns/);
  await assert.rejects(refused(plain, tensorsOf(head.sent)), /did not send head\/b and 1 others/);
  assert.deepEqual([await own.own(), await own.shared()], [null, null]);
  await assert.rejects(
    participant(["haed/*"]),
    /'haed\/\*' matches no trained tensor. Trained are head\/b, head\/w, next\/w/,
  );
  await assert.rejects(participant(["head/*", "next/w"]), /match all that trains, so nothing is shared/);
  const other = new MemoryStore();
  await other.write({ "own.state": new Uint8Array(99) });
  await assert.rejects(participant(head.personal, other), { name: "DamagedStateError" });
  await Promise.all([own.close(), plain.close()]);
});

test("classes that were added to a personal layer stay with their names", async () => {
  const room = await Program.open(file("room.tflite"));
  const store = new MemoryStore();
  const open = async (...personal: string[]) => await Participant.open(room, runtime, store, {}, personal);
  const trainer = await Trainer.open(room, runtime, new MemoryStore());
  await trainer.addClass("mine");
  const names = ["0", "1", "mine", null];
  await store.write({ "own.state": await trainer.export() });
  const own = await open("head/*");
  const config = new Map<string, string | number>([
    ["program", own.identity],
    ["learning-rate", 0.5],
  ]);
  const judged = async (arrays: ReadonlyMap<string, Tensor>) =>
    Number((await own.evaluate(arrays, config, rows(), new Map())).loss);
  const sent = tensorsOf(recorded.room.sent);
  assert.ok(Math.abs((await judged(sent)) - recorded.room.before) < 1e-4);
  const byLabels = await federatedIdentity(room.manifest); // of a server that does not know what is personal
  assert.notEqual(own.identity, byLabels);
  const trained = await own.train(sent, new Map([...config, ["program", byLabels]]), rows(), new Map());
  assert.ok(Math.abs((await judged(trained.arrays)) - recorded.room.after) < 1e-4);
  const shared = (await own.shared()) ?? assert.fail();
  await trainer.addClass("another");
  await adopt(trainer, shared, "both", (name) => name.startsWith("head/"));
  assert.deepEqual(await trainer.classes(), ["0", "1", "mine", "another"]);
  await adopt(trainer, shared, "shared");
  assert.deepEqual(await trainer.classes(), names);
  await trainer.restore((await own.own()) ?? assert.fail());
  assert.deepEqual(await trainer.classes(), names);
  const half = /head\/. stays here and the rest of the last layer does not/;
  await assert.rejects(
    adopt(trainer, shared, "both", (name) => name === "head/b"),
    half,
  );
  await assert.rejects(open("head/w"), half);
  await Promise.all([own.close(), trainer.close()]);
});

test("patterns match what Python's match", () => {
  for (const [pattern, name, isMatch] of recorded.patterns)
    assert.equal(regexOf(pattern).test(name), isMatch, `${pattern} ${name}`);
});
