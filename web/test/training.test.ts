import assert from "node:assert/strict";
import { test } from "node:test";
import type { TargetLabels } from "../trainer/manifest/manifest-records.ts";
import { isLabel, problemOf } from "../trainer/session/numbers.ts";
import {
  BusyError,
  ClosedError,
  InputError,
  labelled,
  NoStateError,
  type Plan,
  type Row,
  type Sample,
  StorageError,
  type TrainEvent,
  Trainer,
} from "../trainer.ts";
import { collected, FailingStore, Log, program, type Script, samples, samplesOf, scripted } from "./fixture.ts";

const stateless = await program("mlp-stateless");
const plan: Plan = { epochs: 2, learningRate: 0.1 };
const four = samples(4);

interface Bench {
  trainer: Trainer;
  store: FailingStore;
  record: Log;
}

async function bench(script: Script = {}, of = stateless, store = new FailingStore()): Promise<Bench> {
  const record = new Log();
  const limits = { samples: 1000, storedBytes: 1 << 20 };
  return { trainer: await Trainer.open(of, scripted(script, record), store, { limits }), store, record };
}

function last(events: TrainEvent[]): TrainEvent {
  return events.at(-1) ?? assert.fail("no events");
}

async function until(events: AsyncIterable<TrainEvent>, isIt: (event: TrainEvent) => boolean): Promise<TrainEvent> {
  for await (const event of events) if (isIt(event)) return event;
  return assert.fail("it ended before");
}

test("a training tells what it does, in order", async () => {
  const { trainer, store, record } = await bench();
  const tensors = record.tensors;
  const events = await collected(trainer.fit(samples(12), { epochs: 2, checkpointEvery: 3 }, { heldOut: samples(5) }));
  const kinds = ["started", "step", "step", "evaluated", "step", "checkpointed", "step", "evaluated", "finished"];
  assert.deepEqual(
    events.map((event) => event.kind),
    kinds,
  );
  const [started, finished] = [events[0], last(events)];
  assert.ok(started?.kind === "started" && finished.kind === "finished");
  assert.deepEqual(
    [started.samples, started.heldOut, started.epochs, started.steps, started.resumedAt],
    [12, 5, 2, 4, 0],
  );
  assert.equal(finished.adopted, 1);
  assert.ok((finished.after?.accuracy ?? 0) > (finished.before?.accuracy ?? 1));
  // The last batch of each epoch holds 4 rows and 4 of weight 0.
  assert.deepEqual(
    record.weights,
    [...Array(4)].map((_, i) =>
      Array(8)
        .fill(1)
        .fill(0, i % 2 === 0 ? 8 : 4),
    ),
  );
  assert.equal(await store.read("personal.state.training"), null);
  assert.equal(record.tensors, tensors, "tensors of the runtime that nobody frees");
});

test("nothing happens before the first event is asked for", async () => {
  const { trainer, record } = await bench();
  trainer.fit(samples(8), plan);
  await trainer.save();
  assert.equal(record.weights.length, 0);
});

test("the learning rate is the one that the optimizer was built with, or what is given", async () => {
  for (const [name, own] of [
    ["mlp-lean", 0.02],
    ["mlp-stateless", 0.1],
    ["unit", 1],
  ] as const) {
    const rates = [own, 1, 0.5];
    for (const [i, learningRate] of [undefined, 1, 0.5].entries()) {
      const { trainer, record } = await bench({}, await program(name));
      const given = learningRate === undefined ? { epochs: 1 } : { epochs: 1, learningRate };
      await collected(trainer.fit(samples(8), given));
      assert.deepEqual(record.rates, [Math.fround(rates[i] ?? 0)]);
    }
  }
});

test("the accuracy is that of the places that count", async () => {
  const accuracies = [stateless, await program("masked")].map(async (of) => {
    const { trainer } = await bench({ accuracy: () => 0.25 }, of);
    return (await trainer.evaluate(four)).accuracy;
  });
  assert.deepEqual(await Promise.all(accuracies), [0.25, 0.5]);
});

test("a scale multiplies the learning rate, and no rate is below 0", async () => {
  const { trainer, record } = await bench({}, await program("mlp-lean"));
  await collected(trainer.fit(samples(8), { epochs: 1, rateScale: 0.5 }));
  await collected(trainer.fit(samples(8), { epochs: 1, learningRate: 3, rateScale: 0.5 }));
  assert.deepEqual(record.rates, [Math.fround(0.01), 1.5]);
  for (const bad of [{ learningRate: -1 }, { rateScale: -1 }, { rateScale: Number.NaN }]) {
    await assert.rejects(collected(trainer.fit(samples(8), bad)), InputError);
  }
});

test("a rate that runs in the program is scaled, and none is taken beside it", async () => {
  const { trainer, record } = await bench({}, await program("fading"));
  await assert.rejects(collected(trainer.fit(samples(8), { learningRate: 1 })), /polynomial_schedule.*rateScale/);
  await collected(trainer.fit(samples(8), { epochs: 1 }));
  await collected(trainer.fit(samples(8), { epochs: 1, rateScale: 0.5 }));
  assert.deepEqual(record.rates, [1, 0.5]);
});

test("that nothing changes any more is told once, before the first such step", async () => {
  const told = (events: TrainEvent[]) =>
    events.flatMap((event) => (event.kind === "standstill" ? [`${event.step}: ${event.why}`] : []));
  // The scripted runtime adds the step's input to every number of the state: each step of 1 counts 1.
  const fading = await bench({}, await program("fading"));
  const first = told(await collected(fading.trainer.fit(samples(8), { epochs: 5 })));
  assert.match(first.join(), /^3: the learning rate is 0: it runs in the program .* has ended/);
  assert.match(told(await collected(fading.trainer.fit(samples(8), { epochs: 2 }))).join(), /^0: .* has ended/);
  const { trainer } = await bench({}, await program("mlp-lean"));
  assert.deepEqual(told(await collected(trainer.fit(samples(8), { epochs: 2, learningRate: 0 }))), [
    "0: the learning rate is 0",
  ]);
  const warm: Plan = { epochs: 4, learningRate: (step) => (step === 0 ? 0 : step < 3 ? 0.1 : 0) };
  assert.deepEqual(told(await collected(trainer.fit(samples(8), warm))), ["3: the learning rate is 0"]);
  assert.deepEqual(told(await collected(trainer.fit(samples(8), { epochs: 2 }))), []);
});

test("a state whose accuracy fell is not adopted", async () => {
  const { trainer } = await bench({ accuracy: (value) => 1 - value });
  await trainer.save();
  const before = await trainer.evaluate(four);
  const finished = last(await collected(trainer.fit(samples(8), plan, { heldOut: four })));
  assert.ok(finished.kind === "finished" && finished.adopted === null);
  assert.deepEqual(await trainer.evaluate(four), before);
  assert.equal((await trainer.restore()).generation, 1);
});

test("an early stop keeps the best epoch", async () => {
  const { trainer } = await bench({ loss: (value) => (value - 0.2) ** 2 });
  const stopping = { epochs: 50, earlyStop: { patience: 3 } };
  const events = await collected(trainer.fit(samples(8), stopping, { heldOut: four }));
  const finished = last(events);
  assert.ok(finished.kind === "finished" && finished.stoppedEarly);
  assert.equal(events.filter((event) => event.kind === "step").length, 5);
  const losses = events.flatMap((event) => (event.kind === "evaluated" ? [event.evaluation.loss] : []));
  assert.equal(finished.after?.loss, Math.min(...losses));
  assert.deepEqual(await trainer.evaluate(four), finished.after);
});

test("divergence is told, and nothing of it stays", async () => {
  const { trainer, store } = await bench({ loss: (value) => (value > 0.25 ? Number.NaN : 1) });
  const before = await trainer.evaluate(four);
  const diverged = last(await collected(trainer.fit(samples(8), { epochs: 9, checkpointEvery: 1 })));
  assert.ok(diverged.kind === "diverged" && diverged.step === 3);
  assert.deepEqual(await trainer.evaluate(four), before);
  assert.equal(await store.read("personal.state.training"), null);
  const wild = await bench({ loss: () => 1 });
  assert.equal(last(await collected(wild.trainer.fit(samples(8), { epochs: 2, learningRate: 3e38 }))).kind, "diverged");
  assert.equal(await wild.store.read("personal.state"), null);
});

test("a step that writes what is not finite is told of, whatever the loss is, and the operation comes first", async () => {
  for (const name of ["rooted-variables", "rooted-stateless"]) {
    let steps = 0;
    const script = { loss: () => 1, finite: () => (steps++ < 2 ? 0 : Number.NaN) };
    const { trainer } = await bench(script, await program(name));
    const rates = [0.5, 0.5, name.endsWith("stateless") ? 3e38 : 0.5, 3e38];
    const learningRate = (step: number) => rates[step] ?? 0;
    const diverged = last(await collected(trainer.fit(samples(32), { epochs: 1, learningRate })));
    assert.ok(diverged.kind === "diverged" && Number.isNaN(diverged.loss));
    assert.equal(diverged.step, name.endsWith("stateless") ? 3 : 2);
    const at = ["Sqrt (", "learning rate"].map((words) => diverged.why.indexOf(words));
    assert.ok((at[0] ?? -1) >= 0 && (at[0] ?? 0) < (at[1] ?? -1), diverged.why);
  }
});

test("a full storage leaves the old state, in memory and in the store", async () => {
  const { trainer, store } = await bench();
  await trainer.save();
  const before = await trainer.evaluate(four);
  for (const checkpointEvery of [0, 1]) {
    store.isFull = true;
    await assert.rejects(collected(trainer.fit(samples(80), { ...plan, checkpointEvery })), StorageError);
    store.isFull = false;
    assert.deepEqual(await trainer.evaluate(four), before);
    assert.equal((await trainer.restore()).generation, 1);
  }
});

test("a cancelled training never was, however it is cancelled", async () => {
  const { trainer, record } = await bench();
  const before = await trainer.evaluate(four);
  const tensors = record.tensors;
  const leaving = await until(trainer.fit(samples(80), plan), (event) => event.kind === "step" && event.step === 3);
  assert.equal(leaving.kind, "step");
  assert.deepEqual(await trainer.evaluate(four), before);
  const controller = new AbortController();
  await assert.rejects(async () => {
    for await (const event of trainer.fit(samples(80), plan, { signal: controller.signal })) {
      if (event.kind === "step") controller.abort(new Error("enough"));
    }
  }, /enough/);
  assert.deepEqual(await trainer.evaluate(four), before);
  assert.equal(record.tensors, tensors);
});

test("a failure in mid-epoch leaves the old state, and the next training works", async () => {
  let isBroken = true;
  const onStep = (step: number) => {
    if (isBroken && step === 2) throw new Error("out of memory");
  };
  const { trainer } = await bench({ onStep });
  const before = await trainer.evaluate(four);
  await assert.rejects(collected(trainer.fit(samples(80), plan)), /out of memory/);
  assert.deepEqual(await trainer.evaluate(four), before);
  isBroken = false;
  assert.equal(last(await collected(trainer.fit(samples(8), plan))).kind, "finished");
});

test("a training that died goes on from its checkpoint to the very same state", async () => {
  const long: Plan = { epochs: 3, checkpointEvery: 2, learningRate: (step) => 0.01 * (step + 1) };
  const whole = await bench();
  await collected(whole.trainer.fit(samples(30), long));
  const expected = await whole.trainer.export();
  const store = new FailingStore();
  const died = await bench({}, stateless, store);
  const events = died.trainer.fit(samples(30), long);
  await events.next();
  for (let event = await events.next(); !event.done; event = await events.next()) {
    if (event.value.kind === "checkpointed" && event.value.steps === 6) break;
  }
  // The tab is gone here. What another plan or other samples leave alone is taken up by the same ones.
  for (const [count, other, resumedAt] of [
    [30, { ...long, seed: 1 }, 0],
    [29, long, 0],
    [30, long, 6],
  ] as const) {
    const next = await bench({}, stateless, store);
    const started = await until(next.trainer.fit(samples(count), other), () => true);
    assert.ok(started.kind === "started" && started.resumedAt === resumedAt, `${resumedAt}`);
  }
  const next = await bench({}, stateless, store);
  await collected(next.trainer.fit(samples(30), long));
  assert.deepEqual(await next.trainer.export(), expected);
});

test("undo, redo and reset", async () => {
  const { trainer } = await bench();
  const built = await trainer.evaluate(four);
  await assert.rejects(trainer.rollback(), NoStateError);
  assert.equal(await trainer.reset(), null);
  await collected(trainer.fit(samples(8), plan));
  const taught = await trainer.evaluate(four);
  assert.equal((await trainer.rollback()).generation, 2);
  assert.deepEqual(await trainer.evaluate(four), built);
  await trainer.rollback();
  assert.deepEqual(await trainer.evaluate(four), taught);
  assert.equal(await trainer.reset(), 4);
  assert.deepEqual(await trainer.evaluate(four), built);
  await trainer.rollback();
  assert.deepEqual(await trainer.evaluate(four), taught);
  assert.equal((await trainer.restore()).generation, 5);
});

test("what would change the state is refused while it trains, what only reads it is answered", async () => {
  const { trainer } = await bench();
  for await (const event of trainer.fit(samples(80), plan)) {
    if (event.kind !== "step") continue;
    const changes = [trainer.save(), trainer.restore(), trainer.rollback(), trainer.reset(), trainer.export()];
    for (const call of [...changes, trainer.fit(samples(8), plan).next()]) await assert.rejects(call, BusyError);
    assert.equal((await trainer.infer(four.map((sample) => sample.inputs))).length, 4);
    break;
  }
  assert.equal(await trainer.save(), 1);
});

test("the user and the guard pause it", async () => {
  const record = new Log();
  let heat: string | null = "heat";
  const guard = () => heat;
  const trainer = await Trainer.open(stateless, scripted({}, record), new FailingStore(), { guard });
  const kinds: string[] = [];
  for await (const event of trainer.fit(samples(16), plan)) {
    kinds.push(event.kind === "paused" ? `paused ${event.reason}` : event.kind);
    if (event.kind === "paused") {
      heat = null;
      setTimeout(() => trainer.resume(), 5);
    }
    if (event.kind === "step" && event.step === 1) trainer.pause();
  }
  const expected = "started,paused heat,resumed,step,step,paused person,resumed,step,step,finished";
  assert.equal(kinds.join(), expected);
});

test("after closing everything says so, a training that waits too", async () => {
  const { trainer, record } = await bench();
  const events = trainer.fit(samples(80), plan);
  await events.next();
  trainer.pause();
  const waiting = until(events, (event) => event.kind === "step");
  setTimeout(() => trainer.close(), 5);
  await assert.rejects(waiting, ClosedError);
  assert.ok(record.isClosed);
  await assert.rejects(trainer.evaluate(four), ClosedError);
  await assert.rejects(collected(trainer.fit(samples(8))), ClosedError);
  await trainer.close();
});

test("bad samples and plans are refused before the first step", async () => {
  const { trainer, record } = await bench();
  const x = new Float32Array(36);
  const good = labelled(x, 0);
  const bad: Sample[][] = [
    [],
    [labelled(x, 4)],
    [labelled(x, -1)],
    [labelled(x, 0, Number.NaN)],
    [labelled(x, 0, 0)],
    [labelled(x.slice(1), 0)],
    [
      good,
      labelled(
        x.map(() => Number.NaN),
        0,
      ),
    ],
    [{ inputs: {}, targets: good.targets }],
    [{ inputs: { ...good.inputs, z: x }, targets: good.targets }],
    [{ inputs: good.inputs, targets: { y: new Float32Array(1) } }],
    [{ inputs: good.inputs, targets: { ...good.targets, z: x } }],
    Array(1001).fill(good),
  ];
  for (const each of bad) await assert.rejects(collected(trainer.fit(each, plan)), InputError);
  const rows: [unknown, RegExp][] = [
    [{ pixels: x }, /the input x is missing: it takes x \(36 x float32\), and pixels \(Float32Array of 36\) came/],
    [{}, /it takes x \(36 x float32\), and nothing came/],
    [x, /a row names its inputs: \{ x: values \}; Float32Array of 36 came/],
    [{ x: [...x] }, /rows\[0\]\.x: expected 36 x float32, got an Array of 36/],
  ];
  for (const [row, said] of rows) await assert.rejects(trainer.infer([row as Row]), said);
  const plans: Plan[] = [
    { epochs: 0 },
    { epochs: 1e9 },
    { seed: 0.5 },
    { learningRate: Number.NaN },
    { replay: { samples: four, share: 1 } },
    { checkpointEvery: -1 },
    { earlyStop: { patience: 0 } },
  ];
  for (const each of plans) await assert.rejects(collected(trainer.fit(samples(8), each)), InputError);
  await assert.rejects(collected(trainer.fit([good], plan, { heldOut: [labelled(x, 9)] })), InputError);
  await assert.rejects(trainer.infer([]), /there are none/);
  assert.equal(record.weights.length, 0);
});

/** What a loss takes where nothing is said. */
const anything: TargetLabels = {
  count: null,
  masked: false,
  ignored: null,
  least: null,
  most: null,
  only: [],
  advice: "",
};

test("labels are those of the target, and those that its loss leaves out", async () => {
  const { manifest } = await program("mlp-variables");
  assert.deepEqual([...manifest.targetLabels], [["y", { ...anything, count: 4 }]]);
  const some = [-100, -1, 0, 3, 4, 254, 255];
  const taken = (labels: TargetLabels) => some.filter((label) => isLabel(labels, label));
  assert.deepEqual(taken({ ...anything, count: 4 }), [0, 3]);
  assert.deepEqual(taken({ ...anything, count: 4, masked: true }), [-100, -1, 0, 3]);
  assert.deepEqual(taken({ ...anything, count: 4, ignored: 255 }), [0, 3, 255]);
});

test("a target holds the numbers that its loss takes", () => {
  const problem = (labels: Partial<TargetLabels>, ...numbers: number[]) =>
    problemOf({ ...anything, ...labels }, "mse", Float32Array.from(numbers));
  assert.equal(problem({}, -3, 7), undefined);
  const probabilities = { least: 0, most: 1 };
  assert.equal(problem(probabilities, 0, 1.0000005), undefined);
  assert.equal(problem(probabilities, 0.5, 2), "mse takes numbers from 0 to 1, and this holds 2");
  assert.ok(problem(probabilities, -0.1));
  assert.equal(problem({ count: 2, least: 0 }, 0, 5), undefined);
  assert.equal(problem({ count: 2, least: 0 }, -1), "mse takes numbers from 0 on, one a class, and this holds -1");
  assert.equal(problem({ most: 2.5 }, 3), "mse takes numbers to 2.5, and this holds 3");
  const signs = { only: [-1, 1], advice: "pass 2 * y - 1" };
  assert.equal(problem(signs, -1, 1), undefined);
  assert.equal(problem(signs, 0), "mse takes -1 or 1 (pass 2 * y - 1), and this holds 0");
});

test("a batch whose rows influence each other is not filled up", async () => {
  const { trainer } = await bench({}, await program("mixing"));
  const whole = samples(16);
  const refusals = [
    () => collected(trainer.fit(whole.slice(0, 7), plan)),
    () => collected(trainer.fit(whole, plan, { heldOut: whole.slice(0, 7) })),
    () => trainer.evaluate(whole.slice(0, 7)),
    () => collected(trainer.fit(whole, { replay: { samples: four, share: 0.2 } })),
    () => trainer.infer([whole[0]?.inputs ?? {}]),
  ];
  for (const refused of refusals) await assert.rejects(refused, /influence each other.*whole batches of 8/);
  assert.equal(last(await collected(trainer.fit(whole, plan, { heldOut: whole }))).kind, "finished");
});

test("a step is its micro-batches, each row with its share of the weight, and one update", async () => {
  const { trainer, record } = await bench({}, await program("mlp-by-2-stateless"));
  const weighed = samplesOf("mlp-by-2").slice(0, 13);
  await collected(trainer.fit(weighed, { epochs: 1, learningRate: 0.5, shuffle: false }));
  assert.equal(record.weights.length, 7);
  assert.equal(record.rates.length, 2);
  for (const step of [record.weights.slice(0, 4), record.weights.slice(4)]) {
    const sum = step.flat().reduce((all, weight) => all + weight, 0);
    assert.ok(Math.abs(sum - 1) < 1e-6);
  }
  assert.equal(record.weights[6]?.[1], 0);
});
