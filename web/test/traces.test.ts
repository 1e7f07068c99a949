import assert from "node:assert/strict";
import { test } from "node:test";
import { unpack } from "../trainer/state/state-file.ts";
import { MemoryStore, type Plan, type Sample, type TrainEvent, Trainer } from "../trainer.ts";
import { bytes, collected, floats, picturesOf, program, samplesOf, textsOf } from "./fixture.ts";
import { inNode } from "./litert.ts";

/** Of every number of an event and of a state. */
const TOLERANCE = 1e-5;

/** A training of the host: see android_app/recorded_traces.py. */
interface Trace {
  program: string;
  data: string;
  rows: [number, number];
  held_out: [number, number] | null;
  epochs: number;
  seed: number | null;
  learning_rate: number | null;
  rate_scale: number;
  patience: number | null;
  skip: [number, number] | null;
  head: string | null;
  redraw: boolean;
  fed: "float32" | "uint8" | "int8" | "int32";
  events: Record<string, unknown>[];
}

const runtime = inNode();
const traces: Record<string, Trace> = JSON.parse(new TextDecoder().decode(bytes("traces.json")));

function rowsOf({ data, fed }: Trace, [first, end]: [number, number]): Sample[] {
  if (fed === "uint8") return picturesOf(data).slice(first, end);
  if (fed === "int32") return textsOf(data).slice(first, end);
  const size = data === "two" ? floats("two.size") : null;
  const all = samplesOf(data).map((sample, i) =>
    size
      ? { ...sample, targets: { kind: sample.targets.y ?? new Int32Array(), size: size.slice(2 * i, 2 * i + 2) } }
      : sample,
  );
  return all.slice(first, end);
}

/** What the host tells too, of one event. */
function told(event: TrainEvent): Record<string, unknown>[] {
  switch (event.kind) {
    case "started":
      return [{ kind: event.kind, epochs: event.epochs, steps: event.steps }];
    case "skipped":
      return [{ ...event }];
    case "step":
      return [{ kind: event.kind, epoch: event.epoch, step: event.step, loss: event.loss }];
    case "evaluated":
      return [{ kind: event.kind, epoch: event.epoch, isBest: event.isBest, ...event.evaluation }];
    case "finished":
      return [{ kind: event.kind, stoppedEarly: event.stoppedEarly }];
    default:
      return [];
  }
}

async function opened({ program: of, head }: Trace, store = new MemoryStore()): Promise<Trainer> {
  return await Trainer.open(await program(of, head ?? undefined), runtime, store);
}

function planOf({ epochs, seed, learning_rate: rate, rate_scale: rateScale, patience, skip, redraw }: Trace): Plan {
  return {
    epochs,
    rateScale,
    shuffle: seed !== null,
    seed: seed ?? 0,
    redraw,
    ...(rate === null ? {} : { learningRate: rate }),
    ...(skip === null ? {} : { skip: { below: skip[0], revisit: skip[1] } }),
    ...(patience === null ? {} : { earlyStop: { patience } }),
  };
}

function assertClose(found: unknown, expected: unknown, where: string): void {
  if (typeof found !== "number" || typeof expected !== "number") assert.equal(found, expected, where);
  else assert.ok(Math.abs(found - expected) < TOLERANCE, `${where}: ${found}, and the host has ${expected}`);
}

/** All numbers of a state, by tensor. */
async function numbers(file: Uint8Array<ArrayBuffer>): Promise<[string, number[]][]> {
  const { tensors } = await unpack(file);
  return tensors.map(({ name, dtype, bytes }) => {
    const { buffer } = bytes.slice();
    const kinds = { float32: Float32Array, int32: Int32Array, bool: Uint8Array, int8: Int8Array };
    return [name, [...new kinds[dtype](buffer)]];
  });
}

/** The state in memory is the host's after that training. */
async function assertEnds(trainer: Trainer, name: string): Promise<void> {
  const [state, expected] = [await numbers(await trainer.export()), await numbers(bytes(`trace-${name}.state`))];
  assert.deepEqual(
    state.map(([tensor]) => tensor),
    expected.map(([tensor]) => tensor),
  );
  for (const [i, [tensor, values]] of expected.entries()) {
    assert.equal(state[i]?.[1].length, values.length);
    for (const [at, value] of values.entries()) assertClose(state[i]?.[1][at], value, `${tensor}, number ${at}`);
  }
}

test("there is a dozen of trainings", () => assert.ok(Object.keys(traces).length >= 12));

for (const [name, trace] of Object.entries(traces)) {
  if (trace.fed === "int8") {
    test(`LiteRT.js has no tensors of its type, which is said when it is opened: ${name}`, async () => {
      await assert.rejects(opened(trace), /INT8 is not supported/);
    });
    continue;
  }
  test(`a training of the host, done again: ${name}`, async () => {
    const trainer = await opened(trace);
    const heldOut = trace.held_out && rowsOf(trace, trace.held_out);
    const events = await collected(trainer.fit(rowsOf(trace, trace.rows), planOf(trace), heldOut ? { heldOut } : {}));
    const found = events.flatMap(told);
    assert.deepEqual(
      found.map(({ kind }) => kind),
      trace.events.map(({ kind }) => kind),
    );
    for (const [i, event] of trace.events.entries()) {
      for (const [key, value] of Object.entries(event)) assertClose(found[i]?.[key], value, `event ${i}, ${key}`);
    }
    await assertEnds(trainer, name);
    await trainer.close();
  });
}

for (const name of ["blocks-of-four-bits", "blocks-with-scales"]) {
  test(`a training in blocks whose tab is killed goes on from whole steps to the host's end: ${name}`, async () => {
    const trace = traces[name] ?? assert.fail(name);
    const [store, rows, plan] = [
      new MemoryStore(),
      rowsOf(trace, trace.rows),
      { ...planOf(trace), checkpointEvery: 6 },
    ];
    const died = (await opened(trace, store)).fit(rows, plan);
    for (;;) {
      const { value: event } = await died.next();
      if (!event) assert.fail("it ended before");
      // Nobody leaves the loop or closes the trainer, as nothing runs any more of a tab that is gone.
      if (event.kind === "step" && event.step === 14) break;
    }
    const next = await opened(trace, store);
    const events = await collected(next.fit(rows, plan));
    const [started] = events;
    assert.ok(started?.kind === "started" && started.resumedAt === 12);
    assert.equal(events.filter(({ kind }) => kind === "step").length, 8);
    await assertEnds(next, name);
    await next.close();
  });
}

test("a training that skips rows goes on behind an epoch after which all come, with the rows that would have", async () => {
  const trace = traces.skipping ?? assert.fail();
  const [store, rows, plan] = [new MemoryStore(), rowsOf(trace, trace.rows), { ...planOf(trace), checkpointEvery: 6 }];
  const died = (await opened(trace, store)).fit(rows, plan);
  for (;;) {
    const { value: event } = await died.next();
    if (!event) assert.fail("it ended before");
    if (event.kind === "step" && event.epoch === 5) break;
  }
  const next = await opened(trace, store);
  const events = await collected(next.fit(rows, plan));
  const [started] = events;
  assert.ok(started?.kind === "started" && started.resumedAt === 18);
  const late = trace.events.filter(({ kind, epoch }) => kind === "skipped" && Number(epoch) >= 3);
  assert.deepEqual(
    events.filter(({ kind }) => kind === "skipped"),
    late,
  );
  await assertEnds(next, "skipping");
  await next.close();
});
