import assert from "node:assert/strict";
import { test } from "node:test";
import { TokenChoice } from "../trainer/session/generation.ts";
import {
  BusyError,
  ClosedError,
  DivergedError,
  type GenerateOptions,
  InputError,
  MemoryStore,
  type Plan,
  type RuntimeFactory,
  type RuntimeTensor,
  type Sample,
  type Sampling,
  Trainer,
  type Values,
} from "../trainer.ts";
import { bytes, collected, program } from "./fixture.ts";
import { inNode } from "./litert.ts";

/** What the host wrote: see android_app/language_programs.py. */
interface Told {
  rows: number[][];
  sizes: number[];
  before: number[][];
  after: number[][];
  logits_before: number[][];
  logits_after: number[][];
  drawn: { sampling: Sampling; text: number[] }[];
}

const runtime = inNode();
const told: Told = JSON.parse(new TextDecoder().decode(bytes("generation.json")));
const prompts = told.sizes.map((size, i) => told.rows[i]?.slice(0, size) ?? []);
const [first, second] = [prompts[0] ?? [], prompts[1] ?? []];
const plan: Plan = { epochs: 8, learningRate: 0.05, shuffle: false, checkpointEvery: 0 };
const row = told.rows[0] ?? [];
const sample: Sample = {
  inputs: { x: Int32Array.from(row) },
  targets: { y: Int32Array.from([...row.slice(1), row[0] ?? 0]) },
};

/** What was run, what was given as logits, and how many tensors are not freed. */
class Heard {
  readonly calls: string[] = [];
  readonly logits: Values[] = [];
  tensors = 0;

  /** LiteRT.js, listened to. */
  readonly runtime: RuntimeFactory = async (of) => {
    const inner = await runtime(of);
    // LiteRT.js takes no other tensors than its own, so only what happens to them is watched.
    const watched = <T extends RuntimeTensor>(tensor: T): T => {
      const free = tensor.free.bind(tensor);
      this.tensors++;
      return Object.assign(tensor, {
        free: () => {
          this.tensors--;
          free();
        },
      });
    };
    return {
      report: inner.report,
      put: (spec, values) => watched(inner.put(spec, values)),
      run: async (name, inputs) => {
        this.calls.push(name);
        const outputs = await inner.run(name, inputs);
        for (const tensor of outputs.values()) watched(tensor);
        const logits = await outputs.get("logits")?.read();
        if (logits) this.logits.push(logits);
        return outputs;
      },
      close: () => inner.close(),
    };
  };
}

async function opened(form = "variables", heard = new Heard()): Promise<Trainer> {
  return await Trainer.open(await program(`generation-${form}`), heard.runtime, new MemoryStore());
}

async function written(trainer: Trainer, ids: readonly number[], options: GenerateOptions = {}): Promise<number[]> {
  return await collected(trainer.generate(ids, { most: 10, ...options }));
}

async function allWritten(trainer: Trainer): Promise<number[][]> {
  const texts: number[][] = [];
  for (const prompt of prompts) texts.push(await written(trainer, prompt));
  return texts;
}

for (const form of ["variables", "stateless", "lengths"]) {
  test(`the likeliest tokens and their logits are the host's, before and after a training: ${form}`, async () => {
    const heard = new Heard();
    const trainer = await opened(form, heard);
    const held = heard.tensors;
    const check = async (texts: number[][], logits: number[][], most: number) => {
      assert.deepEqual(await allWritten(trainer), texts);
      for (const [i, prompt] of prompts.entries()) {
        heard.logits.length = 0;
        await written(trainer, prompt, { most: 1 });
        const found = [...(heard.logits.at(-1) ?? [])];
        assert.equal(found.length, logits[i]?.length);
        for (const [at, value] of found.entries()) assert.ok(Math.abs(value - (logits[i]?.[at] ?? Number.NaN)) < most);
      }
    };
    await check(told.before, told.logits_before, 1e-5);
    await collected(trainer.fit([sample], plan));
    // Adam divides gradients by themselves: where they are nearly nothing, their last bits show after some steps.
    await check(told.after, told.logits_after, 1e-4);
    assert.equal(heard.tensors, held, "tensors of the runtime that nobody frees");
    await trainer.close();
  });
}

test("a prompt is read by 32 tokens, and each that was written by itself", async () => {
  const heard = new Heard();
  const trainer = await opened("variables", heard);
  for (const [size, calls] of [
    [1, "decode decode decode"],
    [32, "prefill decode decode"],
    [33, "prefill decode decode decode"],
    [40, "prefill prefill decode decode"],
  ] as const) {
    heard.calls.length = 0;
    await written(trainer, row.slice(0, size), { most: 3 });
    assert.equal(heard.calls.join(" "), calls);
  }
  await trainer.close();
});

test("two texts do not disturb one another, nor a training, whose weights they are written with", async () => {
  const trainer = await opened();
  let steps = 0;
  for await (const event of trainer.fit([sample], plan)) {
    if (event.kind !== "step") continue;
    if (steps++ === 0) {
      const between = await allWritten(trainer);
      assert.notDeepEqual(between, told.before);
      assert.notDeepEqual(between, told.after);
    }
    await assert.rejects(trainer.save(), BusyError);
  }
  assert.equal(steps, 8);
  const [outer, inner]: [number[], number[][]] = [[], []];
  for await (const token of trainer.generate(second, { most: 4 })) {
    outer.push(token);
    inner.push(await written(trainer, prompts[3] ?? [], { most: 3 }));
  }
  assert.deepEqual(outer, told.after[1]?.slice(0, 4));
  assert.deepEqual(inner, Array(4).fill(told.after[3]?.slice(0, 3)));
  await trainer.close();
});

test("it ends at a stop, at the end of the row, when nobody asks, by its signal, and with the trainer", async () => {
  const heard = new Heard();
  const trainer = await opened("stateless", heard);
  const held = heard.tensors;
  const text = told.before[1] ?? [];
  const at = text.findIndex((id, i) => i > 0 && !text.slice(0, i).includes(id));
  assert.deepEqual(await written(trainer, second, { stop: [text[at] ?? -1] }), text.slice(0, at));
  assert.equal((await written(trainer, prompts.at(-1) ?? [])).length, 1);
  assert.deepEqual(await written(trainer, second, { most: 0 }), []);
  heard.logits.length = 0;
  const left: number[] = [];
  for await (const token of trainer.generate(second)) if (left.push(token) === 2) break;
  assert.deepEqual(left, text.slice(0, 2));
  assert.equal(heard.logits.length, 2, "a token that nobody asked for");
  const controller = new AbortController();
  const cancelled = async () => {
    for await (const _ of trainer.generate(second, { signal: controller.signal }))
      controller.abort(new Error("enough"));
  };
  await assert.rejects(cancelled, /enough/);
  assert.equal(heard.tensors, held, "tensors of the runtime that nobody frees");
  await assert.rejects(async () => {
    for await (const _ of trainer.generate(second)) await trainer.close();
  }, ClosedError);
});

test("a seed draws what it draws on the phone, and few draws are of the likeliest", async () => {
  const trainer = await opened();
  const drawn = (sampling: Sampling) => written(trainer, first, { most: 40, sampling });
  const hot: Sampling = { temperature: 3, topK: 96, topP: 1, seed: 1 };
  assert.notDeepEqual(await drawn(hot), await drawn({ ...hot, seed: 2 }));
  const { seed: _, ...anyhow } = hot;
  assert.notDeepEqual(await drawn(anyhow), await drawn(anyhow));
  const likeliest = await drawn({});
  assert.deepEqual(await drawn({ ...hot, topK: 1 }), likeliest);
  assert.deepEqual(await drawn({ ...hot, topP: 1e-9 }), likeliest);
  await collected(trainer.fit([sample], plan));
  assert.equal(told.drawn.length, 2);
  for (const { sampling, text } of told.drawn) assert.deepEqual(await drawn(sampling), text);
  await trainer.close();
});

test("of equal logits the first is taken, and of those that are not finite none", () => {
  assert.equal(new TokenChoice({}).next(Float32Array.of(1, 3, 3)), 1);
  assert.equal(new TokenChoice({ temperature: 1, topK: 1 }).next(Float32Array.of(1, 3, 3)), 1);
  for (const temperature of [0, 1]) {
    const choice = new TokenChoice({ temperature });
    assert.throws(() => choice.next(Float32Array.of(0, Number.NaN)), DivergedError);
    assert.throws(() => choice.next(Float32Array.of(0, Number.NEGATIVE_INFINITY)), DivergedError);
  }
});

test("what cannot be written on is refused in words", async () => {
  const heard = new Heard();
  const trainer = await opened("variables", heard);
  const refused = async (words: RegExp, ids: number[], options: GenerateOptions = {}) => {
    await assert.rejects(
      written(trainer, ids, options),
      (error) => error instanceof InputError && words.test(error.message),
    );
  };
  await refused(/there are none/, []);
  await refused(/49 tokens .* a row of this program holds 48/, Array(49).fill(0));
  for (const id of [96, -1, 0.5, Number.NaN]) await refused(/is no whole number from 0 to 95/, [1, id]);
  for (const sampling of [{ temperature: -1 }, { temperature: Number.NaN }, { topK: 0 }, { topK: 1.5 }, { topP: 0 }]) {
    await refused(/topK a whole number of 1 or more/, [1], { sampling });
  }
  await refused(/seed must be a whole number, got 0.5/, [1], { sampling: { seed: 0.5 } });
  for (const most of [-1, 0.5, Number.NaN]) await refused(/most is a whole number of tokens/, [1], { most });
  assert.equal(heard.logits.length, 0);
  await trainer.close();
  const other = await Trainer.open(await program("mlp-lean"), runtime, new MemoryStore());
  await assert.rejects(written(other, [1]), /train,infer,generate/);
  await other.close();
});
