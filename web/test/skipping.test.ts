import assert from "node:assert/strict";
import { test } from "node:test";
import { Inputs } from "../trainer/session/inputs.ts";
import { LIMITS, whole } from "../trainer/session/plan.ts";
import { Skipping } from "../trainer/session/skipping.ts";
import { MemoryStore, type Plan, Trainer } from "../trainer.ts";
import { collected, program, samplesOf } from "./fixture.ts";
import { inNode } from "./litert.ts";

const skip = { below: 0.5, revisit: 3 };

test("rows do not come that lost less when they came last, but every few epochs", () => {
  const skipping = new Skipping(skip, 5, 5);
  const places = [4, 2, 0, 1, 3, 2];
  assert.deepEqual(skipping.coming(1, places), places, "nothing is known of them");
  skipping.see([2, 4, 1], Float32Array.of(0.4, 0.5, Number.NaN));
  assert.deepEqual([skipping.coming(2, places), skipping.leftOut], [[4, 0, 1, 3], 2]);
  assert.deepEqual([skipping.coming(3, places), skipping.leftOut], [places, 0]);
  skipping.see([2], Float32Array.of(0.6));
  assert.deepEqual([skipping.coming(4, places), skipping.leftOut], [places, 0]);
  skipping.see([2], Float32Array.of(0.4));
  assert.deepEqual([skipping.coming(4, places), skipping.leftOut], [[4, 0, 1, 3], 2]);
  assert.deepEqual([skipping.coming(5, places), skipping.leftOut], [places, 0], "the last");
});

test("an epoch of which no row comes has no step, and rates are those of all rows", async () => {
  const asked: number[] = [];
  const plan: Plan = {
    epochs: 4,
    learningRate: (step) => {
      asked.push(step);
      return 0.01;
    },
    skip: { below: 1e6, revisit: 3 },
  };
  const trainer = await Trainer.open(await program("losses"), inNode(), new MemoryStore());
  const events = await collected(trainer.fit(samplesOf("mlp").slice(0, 32), plan));
  const steps = events.flatMap((event) => (event.kind === "step" ? [event.step] : []));
  assert.deepEqual(steps, [0, 1, 2, 3, 12, 13, 14, 15]);
  assert.deepEqual(
    events.filter(({ kind }) => kind === "skipped"),
    [1, 2].map((epoch) => ({ kind: "skipped", epoch, rows: 32, of: 32 })),
  );
  assert.equal(asked.length, 16);
  await trainer.close();
});

test("plans that cannot skip are refused with the reason", async () => {
  const [giving, plain] = [(await program("losses")).manifest, (await program("mlp-stateless")).manifest];
  const check = (plan: Plan, manifest = giving) => new Inputs(manifest, LIMITS).checkPlan(whole(plan));
  check({ skip, firstEpoch: 6 });
  assert.throws(() => check({ skip }, plain), /build it with --row-losses on/);
  assert.throws(() => check({ skip, firstEpoch: 4 }), /a multiple of 3/);
  for (const below of [0, Number.NaN, Number.POSITIVE_INFINITY]) {
    assert.throws(() => check({ skip: { below } }), /below is a loss above 0/);
  }
  for (const revisit of [1, 2.5]) {
    assert.throws(() => check({ skip: { below: 0.1, revisit } }), /revisit must be at least 2/);
  }
});
