import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { readManifest } from "../trainer/manifest/manifest-checks.ts";
import type { Row, Values } from "../trainer/program/samples.ts";
import { tagsOf } from "../trainer/replay/class-tags.ts";
import {
  type Contents,
  emptyPart,
  type Keeps,
  numberOf,
  offer,
  type Part,
  type RowsOwner,
  type RowTensor,
  tagged,
} from "../trainer/replay/contents.ts";
import { begin, packMemory, unpackMemory } from "../trainer/replay/memory-file.ts";
import { RowKind } from "../trainer/replay/row-kind.ts";
import { InputError, labelled, ReplayError, ReplayMemory, type Sample, StorageError, Trainer } from "../trainer.ts";
import { collected, FailingStore, Log, program, samples, scripted } from "./fixture.ts";

const NAME = "replay.memory";
const own = await program("mlp-stateless");

/** What tests/runtime/memories.json has of a memory. */
interface Recorded {
  readonly keeps: Keeps;
  readonly limit: number;
  readonly held_out: number;
  readonly seed: number;
  readonly classes: number;
  readonly tensors: { readonly replay: RowTensor[]; readonly heldout: RowTensor[] };
  readonly capacities: number[];
  readonly calls: { rows: number; bytes: number; sha256: string; replay: number[]; heldout: number[] }[];
}

const recorded: { program: RowsOwner; names: string[]; memories: Recorded[] } = JSON.parse(
  readFileSync("../tests/runtime/memories.json", "utf8"),
);

function labelOf(number: number, classes: number): number {
  const common = number % 7 < 4 ? 0 : number % 7 < 6 ? 1 : 2;
  return classes === 4 && number >= 60 && number % 9 === 0 ? 3 : common % classes;
}

function weightOf(number: number): number {
  return number % 13 === 10 ? 0 : 1 + (number % 3);
}

function rowOf(number: number, tensors: readonly RowTensor[], classes: number): Row {
  const values = ({ name, dtype, shape }: RowTensor, i: number): Values => {
    const size = shape.reduce((all, each) => all * each, 1);
    const elements = Array.from({ length: size }, (_, k) => number * 31 + i * 7 + k);
    if (name === "weight") return Float32Array.of(weightOf(number));
    if (name === "y" && dtype === "int32") return Int32Array.of(labelOf(number, classes));
    if (dtype === "float32") return Float32Array.from(elements, (it) => ((it % 64) - 32) / 8);
    if (dtype === "bool") return Uint8Array.from(elements, (it) => it % 2);
    return Int8Array.from(elements, (it) => (it % 100) - 50);
  };
  return Object.fromEntries(tensors.map((tensor, i) => [tensor.name, values(tensor, i)]));
}

function numbers(part: Part): number[] {
  return part.reservoir.labels.map((_, row) => numberOf(part, row));
}

test("files and rows are those of the host and the phone", async () => {
  assert.equal(recorded.memories.length, 3);
  for (const memory of recorded.memories) {
    const { keeps, limit, held_out: heldOut, seed, classes, tensors } = memory;
    const parts = [emptyPart(tensors.replay, 0, classes), emptyPart(tensors.heldout, 0, classes)] as const;
    let contents: Contents = begin({ owner: recorded.program, keeps, limit, heldOut, seed }, ...parts);
    assert.deepEqual([contents.replay.reservoir.capacity, contents.aside.reservoir.capacity], memory.capacities);
    for (const call of memory.calls) {
      const first = contents.seen;
      const each = Array.from({ length: call.rows }, (_, row) => first + row);
      const offered = offer(
        contents,
        each.map((number) => (weightOf(number) > 0 ? labelOf(number, classes) : null)),
      );
      const come = offered.contents(
        (row) => rowOf(first + row, tensors.replay, classes),
        (row) => rowOf(first + row, tensors.heldout, classes),
      );
      contents = tagged(come, await tagsOf(recorded.names.slice(0, classes)));
      const file = await packMemory(contents);
      assert.deepEqual([numbers(contents.replay), numbers(contents.aside)], [call.replay, call.heldout]);
      assert.equal(file.length, call.bytes);
      assert.equal(createHash("sha256").update(file).digest("hex"), call.sha256);
      contents = await unpackMemory(file);
      assert.deepEqual(await packMemory(contents), file);
    }
  }
});

async function opened(store = new FailingStore(), runtime = scripted({}, new Log())): Promise<[Trainer, FailingStore]> {
  return [await Trainer.open(own, runtime, store), store];
}

function numbered(count: number, first = 1): Sample[] {
  return Array.from({ length: count }, (_, i) =>
    labelled(new Float32Array(36).fill(i), i % 20 === 0 ? 1 : 0, first + i),
  );
}

test("rows come back as they went in, within the limit", async () => {
  const [trainer, store] = await opened();
  const memory = await ReplayMemory.open(store, own, { limit: 8000, heldOut: 0.25, seed: 3 });
  const given = numbered(200);
  for (let i = 0; i < 200; i += 37) {
    await trainer.remember(memory, given.slice(i, i + 37));
    assert.ok(((await store.read(NAME))?.length ?? 0) <= 8000);
  }
  const again = await ReplayMemory.open(store, own);
  assert.equal(again.seen, 200);
  assert.deepEqual(again.counts(), memory.counts());
  const kept = [...again.replayed(), ...again.heldOut()];
  for (const row of kept) assert.deepEqual(row, given[(row.weight ?? 0) - 1]);
  assert.equal(new Set(kept.map((row) => row.weight)).size, kept.length);
  assert.ok((again.counts().get(1) ?? 0) >= 5, "the rare class stays");
  await again.forget(0);
  assert.deepEqual([...(await ReplayMemory.open(store, own)).counts().keys()], [1]);
});

test("a label that there is not is refused, and the file stays", async () => {
  const [trainer, store] = await opened();
  const memory = await ReplayMemory.open(store, own);
  await trainer.remember(memory, samples(30));
  const before = await store.read(NAME);
  for (const label of [4, -1, 0.5, Number.NaN]) {
    const refusal = new RegExp(`^label: a whole number from 0 to 3, the labels of replay.memory, not ${label}$`);
    const isRefusal = (error: unknown) => error instanceof InputError && refusal.test(error.message);
    await assert.rejects(memory.forget(label), isRefusal);
    await assert.rejects(memory.rename(label, "cat"), isRefusal);
  }
  assert.deepEqual(await store.read(NAME), before);
  assert.equal((await ReplayMemory.open(store, own)).seen, 30);
});

test("rows of the only target are of its classes where it has a name", async () => {
  const named = readManifest(new Uint8Array(readFileSync("../tests/manifest/good/named-target.json")));
  const kind = await RowKind.of(named);
  const row = (label: Values) => ({ inputs: { x: new Float32Array(6) }, targets: { kind: label } });
  const labels = [0, 1, 2, 1, 2, 2];
  const rows = labels.map((label) => row(Int32Array.of(label)));
  assert.deepEqual(
    rows.map((each) => kind.labelOf(each)),
    labels,
  );
  assert.equal(kind.labelOf(row(Float32Array.of(0, 0, 1))), 2);
  const back = rows.map((each) => kind.sample(kind.arrays(each)).targets);
  assert.deepEqual(
    back,
    rows.map((each) => each.targets),
  );
});

test("what is damaged, or another's, is refused and stays", async () => {
  const [trainer, store] = await opened();
  await trainer.remember(await ReplayMemory.open(store, own, { limit: 8000 }), samples(30));
  const good = (await store.read(NAME)) ?? new Uint8Array();
  for (let at = 0; at < good.length; at += 7) {
    const bad = good.slice();
    bad[at] = (bad[at] ?? 0) ^ 1;
    await store.write({ [NAME]: bad });
    await assert.rejects(ReplayMemory.open(store, own), ReplayError, `at ${at}`);
  }
  for (const bad of [good.slice(0, -1), new Uint8Array([...good, 0]), new Uint8Array(), good.slice(0, 40)]) {
    await store.write({ [NAME]: bad });
    await assert.rejects(ReplayMemory.open(store, own), ReplayError);
    assert.deepEqual(await store.read(NAME), bad);
  }
  await store.write({ [NAME]: good });
  const another = ReplayMemory.open(store, await program("cnn-stateless"));
  await assert.rejects(another, /belongs to another program: the forward computation differs/);
  await assert.rejects(ReplayMemory.open(store, own, { limit: 9000 }), /begun with limit 8000, not 9000/);
  await assert.rejects(ReplayMemory.open(store, own, { heldOut: 0.2 }), /begun with heldOut 0.1, not 0.2/);
  for (const options of [{ limit: 100 }, { heldOut: 0.6 }, { seed: -1 }, { keeps: "features" as const }]) {
    await assert.rejects(ReplayMemory.open(store, own, { ...options, name: "b" }), InputError);
  }
});

test("two that write to a file do not lose rows of each other, and a full storage leaves the rows before", async () => {
  const [trainer, store] = await opened();
  const [one, other] = [await ReplayMemory.open(store, own), await ReplayMemory.open(store, own)];
  await trainer.remember(one, samples(5));
  await assert.rejects(trainer.remember(other, samples(5)), /not as it was when it was opened/);
  store.isFull = true;
  await assert.rejects(trainer.remember(one, samples(7)), StorageError);
  assert.equal((await ReplayMemory.open(store, own)).seen, 5);
  store.isFull = false;
  await trainer.remember(one, samples(7));
  assert.equal((await ReplayMemory.open(store, own)).seen, 12);
});

test("rows of an update that sorts its classes anew are refused", async () => {
  const store = new FailingStore();
  const [before, after] = [await program("interchange-labelled"), await program("interchange-relabelled")];
  const memory = await ReplayMemory.open(store, before, { heldOut: 0 });
  await (await Trainer.open(before, scripted(), store)).remember(memory, samples(8));
  const again = await ReplayMemory.open(store, after);
  const added = (await Trainer.open(after, scripted(), store)).remember(again, samples(8));
  await assert.rejects(added, /label 2 came under another name, and the label is of 'd' now/);
});

test("a training replays rows, never trains on held-out ones, and all enter at its end", async () => {
  const log = new Log();
  const [trainer, store] = await opened(new FailingStore(), scripted({}, log));
  const memory = await ReplayMemory.open(store, own, { heldOut: 0.25 });
  await collected(trainer.fit(numbered(40), { epochs: 1 }, { memory }));
  assert.equal(memory.seen, 40);
  const aside = new Set(memory.heldOut().map((row) => row.weight ?? 0));
  const trained = log.weights.flat().filter((weight) => weight > 0);
  assert.deepEqual(new Set([...trained, ...aside]).size, 40);
  assert.ok(trained.every((weight) => !aside.has(weight)));
  log.weights.length = 0;
  const old = new Set(memory.replayed().map((row) => row.weight));
  const events = await collected(trainer.fit(numbered(40, 101), { epochs: 1 }, { memory }));
  const [first, last] = [events[0], events.at(-1)];
  assert.ok(first?.kind === "started" && first.heldOut === aside.size);
  assert.ok(last?.kind === "finished" && last.before !== null);
  const replayed = log.weights.flat().filter((weight) => weight > 0 && weight < 100);
  assert.equal(replayed.length, log.weights.flat().filter((weight) => weight > 100).length, "half of the rows");
  assert.ok(replayed.every((weight) => old.has(weight)));
  assert.equal(memory.seen, 80);
  const cancelled = trainer.fit(numbered(9), { epochs: 1 }, { memory });
  await cancelled.next();
  await cancelled.return();
  assert.equal((await ReplayMemory.open(store, own)).seen, 80, "no row of a training that was left enters");
});
