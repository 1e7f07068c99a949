import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { readManifest } from "../trainer/manifest/manifest-checks.ts";
import { Curriculum, classOf } from "../trainer/session/batches.ts";
import { Inputs } from "../trainer/session/inputs.ts";
import { LIMITS, type Plan, whole } from "../trainer/session/plan.ts";
import { Random } from "../trainer/session/random.ts";
import { cosine, labelled, type Sample, warmUp } from "../trainer.ts";
import { samples } from "./fixture.ts";

const rows = samples(21);

function epoch(of: Sample[], plan: Plan, number = 0, size = 8): Sample[] {
  return new Curriculum(of, whole(plan), size).batches(number).flatMap((batch) => batch.rows);
}

// What Java prints for these seeds.
test("random numbers are those of java.util.Random", () => {
  const many = (seed: bigint, bounds: number[]) => {
    const random = new Random(seed);
    return bounds.map((bound) => random.nextInt(bound));
  };
  assert.deepEqual(many(42n, Array(10).fill(10)), [0, 3, 8, 4, 0, 5, 5, 8, 9, 3]);
  const down = Array.from({ length: 20 }, (_, i) => 21 - i);
  const drawn = [16, 15, 12, 5, 8, 11, 7, 10, 10, 3, 9, 7, 2, 1, 6, 5, 0, 2, 2, 1];
  assert.deepEqual(many(1_000_003n, down), drawn);
  const bounds = [1, 2, 3, 64, 1000, 1073741825, 2147483647];
  assert.deepEqual(many(-7n * 1_000_003n + 2n, bounds), [0, 1, 1, 35, 282, 319039990, 550495978]);
  const random = new Random(-7n);
  const doubles = [0.2691218093260761, 0.6731811902798038, 0.5214896372918163, 0.8518782305056931];
  for (const double of doubles) assert.equal(random.nextDouble(), double);
});

test("orders are those of the host and the phone", () => {
  const vectors: { seed: number; epoch: number; order: number[] }[] = JSON.parse(
    readFileSync("../tests/runtime/orders.json", "utf8"),
  );
  assert.ok(vectors.length > 9);
  for (const { seed, epoch: number, order } of vectors) {
    const rows = samples(order.length);
    const found = epoch(rows, { seed }, number, order.length);
    assert.deepEqual(
      found.map((row) => rows.indexOf(row)),
      order,
    );
  }
});

test("every epoch sees every sample once, in an order of its own that the seed decides", () => {
  const orders = [0, 1, 2].map((number) => epoch(rows, { seed: 3 }, number));
  for (const order of orders) assert.deepEqual(new Set(order), new Set(rows));
  assert.notDeepEqual(orders[0], orders[1]);
  assert.deepEqual(orders[1], epoch(rows, { seed: 3 }, 1));
  assert.notDeepEqual(
    orders[1]?.map((row) => rows.indexOf(row)),
    epoch(rows, { seed: 4 }, 1).map((row) => rows.indexOf(row)),
  );
  assert.deepEqual(epoch(rows, { shuffle: false }, 2), rows);
  const curriculum = new Curriculum(rows, whole({}), 8);
  assert.deepEqual(
    curriculum.batches(0).map((batch) => batch.rows.length),
    [8, 8, 5],
  );
  assert.equal(curriculum.stepsPerEpoch, 3);
});

test("rows of weight 0 are left out", () => {
  assert.deepEqual(new Set(epoch([...rows, labelled(new Float32Array(36), 0, 0)], {})), new Set(rows));
});

test("replayed samples make up their share and change from epoch to epoch", () => {
  const old = samples(100);
  const plan = { replay: { samples: old, share: 0.25 } };
  const drawn = [0, 1].map((number) => epoch(rows, plan, number).filter((row) => old.includes(row)));
  assert.deepEqual(
    drawn.map((each) => new Set(each).size),
    [7, 7],
  );
  assert.notDeepEqual(
    drawn[0]?.map((row) => old.indexOf(row)),
    drawn[1]?.map((row) => old.indexOf(row)),
  );
  // Fewer than are drawn: they come again.
  assert.equal(epoch(rows, { replay: { samples: old.slice(0, 5), share: 0.75 } }).length, 84);
});

test("balance gives each class the same weight and keeps the sum", () => {
  const uneven = [...Array(9)].map(() => labelled(new Float32Array(36), 0));
  uneven.push(...[...Array(3)].map(() => labelled(new Float32Array(36), 1)));
  const sums = [0, 0];
  for (const batch of new Curriculum(uneven, whole({ balanceClasses: true }), 8).batches(0)) {
    for (const [i, row] of batch.rows.entries())
      sums[classOf(row)] = (sums[classOf(row)] ?? 0) + (batch.weights[i] ?? 0);
  }
  assert.ok(sums.every((sum) => Math.abs(sum - 6) < 1e-5));
  assert.equal(classOf({ inputs: {}, targets: { y: Float32Array.of(0, 0, 1) } }), 2);
});

test("classes of the only target are balanced where it has a name, and of several none", () => {
  const manifest = (name: string) => readManifest(new Uint8Array(readFileSync(`../tests/manifest/good/${name}.json`)));
  const plan = whole({ balanceClasses: true });
  new Inputs(manifest("named-target"), LIMITS).checkPlan(plan);
  assert.throws(() => new Inputs(manifest("two-losses"), LIMITS).checkPlan(plan), /this model knows no classes/);
  assert.deepEqual([manifest("named-target").classes, manifest("two-losses").classes], [3, undefined]);
  const uneven = [0, 0, 0, 2].map((label) => ({ inputs: {}, targets: { kind: Int32Array.of(label) } }));
  const [batch] = new Curriculum(uneven, { ...plan, shuffle: false }, 4).batches(0);
  // Of 4 in all each class weighs 2.
  const weights = [2 / 3, 2 / 3, 2 / 3, 2].map(Math.fround);
  assert.deepEqual(batch?.weights, weights);
});

test("rates", () => {
  const rate = cosine(1, 0.2);
  const near = (a: number, b: number) => assert.ok(Math.abs(a - b) < 1e-6, `${a} and ${b}`);
  near(rate(0, 100), 1);
  near(rate(50, 100), 0.6);
  near(rate(99, 100), 0.2001974);
  const warm = warmUp(4, rate);
  for (const [step, expected] of [0.2, 0.4, 0.6, 0.8, 1].entries()) near(warm(step, 104), expected);
  near(warm(54, 104), 0.6);
  assert.ok([0, 1, 2].every((step) => Number.isFinite(warmUp(9, rate)(step, 3))));
});
