import { readFileSync } from "node:fs";
import { type Bytes, bytesOf } from "../trainer/bytes.ts";
import { byteSize, type Manifest, ofRole, product } from "../trainer/manifest/manifest.ts";
import type { TensorSpec } from "../trainer/manifest/manifest-records.ts";
import { ModelMetadata } from "../trainer/program/model-metadata.ts";
import type { StoredTensor } from "../trainer/program/state-spec.ts";
import {
  labelled,
  MemoryStore,
  Program,
  type RuntimeFactory,
  type RuntimeTensor,
  type Sample,
  StorageError,
  type Values,
} from "../trainer.ts";

/** What android_app/test_programs.py made: programs, and what the host's runtime makes of them. */
const PROGRAMS = process.env.PROGRAMS ?? "../android_app/target/programs";

export function bytes(name: string): Bytes {
  return new Uint8Array(readFileSync(`${PROGRAMS}/${name}`));
}

export function floats(name: string): Float32Array {
  return new Float32Array(bytes(name).buffer);
}

export async function program(name: string, head?: string): Promise<Program> {
  return await Program.open(bytes(`${name}.tflite`), head);
}

export function manifestOf(name: string): string {
  const entry = new ModelMetadata(bytes(`${name}.tflite`)).entries("pocketune.initial/").get("pocketune.manifest");
  return new TextDecoder().decode(entry);
}

/** The data that the host trained on. */
export function samplesOf(name: string): Sample[] {
  const [x, weight] = [floats(`${name}.x`), floats(`${name}.weight`)];
  const size = x.length / weight.length;
  const labels = new Int32Array(bytes(`${name}.y`).buffer);
  return [...labels].map((label, i) => labelled(x.slice(i * size, (i + 1) * size), label, weight[i]));
}

/** The same of pictures whose pixels are bytes. */
export function picturesOf(name: string): Sample[] {
  const [x, weight] = [bytes(`${name}.x`), floats(`${name}.weight`)];
  const size = x.length / weight.length;
  const labels = new Int32Array(bytes(`${name}.y`).buffer);
  return [...labels].map((label, i) => ({
    inputs: { x: x.slice(i * size, (i + 1) * size) },
    targets: { y: Int32Array.of(label) },
    weight: weight[i] ?? 1,
  }));
}

/** Texts that end where the host's do; of every second one nothing stands behind that. */
export function textsOf(name: string): Sample[] {
  const [x, y] = [`${name}.x`, `${name}.y`].map((file) => new Int32Array(bytes(file).buffer));
  const weights = [...floats(`${name}.weight`)];
  const tokens = (x?.length ?? 0) / weights.length;
  return weights.map((weight, i) => {
    const labels = y?.slice(i * tokens, (i + 1) * tokens) ?? new Int32Array();
    const end = i % 2 === 0 ? tokens : 1 + labels.findLastIndex((label) => label >= 0);
    const ids = x?.slice(i * tokens, i * tokens + end) ?? new Int32Array();
    return { inputs: { x: ids }, targets: { y: labels.slice(0, end) }, weight };
  });
}

export function samples(count: number): Sample[] {
  return Array.from({ length: count }, (_, i) => labelled(new Float32Array(36).fill(i % 4), i % 4));
}

/** A state of a program, all of it one number. */
export function tensors(manifest: Manifest, value: number): StoredTensor[] {
  return manifest.stateTensors.map((tensor) => ({
    name: tensor.tensor,
    dtype: tensor.dtype,
    shape: tensor.shape,
    bytes: bytesOf(new (tensor.dtype === "float32" ? Float32Array : Int32Array)(byteSize(tensor) / 4).fill(value)),
  }));
}

/** The number that fills a state. */
export function fillOf(state: readonly StoredTensor[]): number {
  const first = state.find((tensor) => tensor.dtype === "float32")?.bytes.slice() ?? new Uint8Array(4);
  return new Float32Array(first.buffer)[0] ?? Number.NaN;
}

export async function collected<T>(events: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const event of events) all.push(event);
  return all;
}

/** A store that can be full. */
export class FailingStore extends MemoryStore {
  isFull = false;

  override async write(changes: Record<string, Bytes | null>): Promise<void> {
    if (this.isFull && Object.values(changes).some((file) => file)) throw new StorageError("the storage is full");
    await super.write(changes);
  }
}

export interface Script {
  loss?: (value: number) => number;
  accuracy?: (value: number) => number;
  finite?: () => number;
  onStep?: (step: number) => void;
}

/** What a scripted runtime was given by each call that trains, and how many of its tensors are not freed. */
export class Log {
  readonly weights: number[][] = [];
  readonly rates: number[] = [];
  tensors = 0;
  isClosed = false;
}

/**
 * Stands in for a runtime of stateless programs: a step adds the learning rate to every number of the state; loss and
 * accuracy are functions of the state's first number. By micro-batches the learning rate is multiplied by what was
 * accumulated, the sum of the weights, which is 1 after a whole step. Masks are 0.5. It is strict about what it is given.
 */
export function scripted(script: Script = {}, record = new Log()): RuntimeFactory {
  const { loss = (value) => 1 / (1 + value), accuracy = (value) => value / 100, onStep = () => undefined } = script;
  const tensor = (values: Values): RuntimeTensor & { values: Values } => {
    record.tensors++;
    let isFree = false;
    const free = () => {
      if (isFree) throw new Error("freed twice");
      isFree = true;
      record.tensors--;
    };
    const read = async () => {
      if (isFree) throw new Error("read after it was freed");
      return values.slice();
    };
    return { values, read, free };
  };
  const numbers = (spec: TensorSpec, value: number) =>
    tensor(new (spec.dtype === "float32" ? Float32Array : Int32Array)(product(spec.shape)).fill(value));
  return async ({ manifest }) => ({
    report: { runtime: "scripted", runs: "wasm", fallback: null },
    put: (spec, values) => {
      if (values.length !== product(spec.shape)) throw new Error("a tensor of another size");
      return tensor(values.slice());
    },
    run: async (name, inputs) => {
      const signature = manifest.signature(name);
      const given = new Map<string, Values>();
      for (const [key, input] of inputs) given.set(key, await input.read());
      const expected = signature.inputs.map((spec) => spec.name).sort();
      if (expected.join() !== [...given.keys()].sort().join()) throw new Error(`inputs of ${name}`);
      const state = manifest.stateTensors.find((each) => each.dtype === "float32")?.tensor ?? "";
      const value = given.get(state)?.[0] ?? 0;
      const weights = [...(given.get("weight") ?? [])];
      const sum = weights.reduce((all, weight) => all + weight, 0);
      const rate = given.get("learning_rate")?.[0] ?? 0;
      if (name === "train" || name === "accumulate") {
        onStep(record.weights.length);
        record.weights.push(weights);
      }
      if (given.has("learning_rate")) record.rates.push(rate);
      const made = (spec: TensorSpec): RuntimeTensor => {
        const own = given.get(spec.name);
        if (spec.role === "state" && own) {
          const gradient =
            name === "apply" ? (given.get(ofRole(signature.inputs, "gradient")[0]?.name ?? "")?.[0] ?? 0) : 1;
          return spec.dtype === "float32" ? tensor(own.map((n) => n + rate * gradient)) : tensor(own.slice());
        }
        if (spec.role === "gradient" && own) return tensor(own.map((n) => n + sum));
        if (spec.role === "loss") return numbers(spec, loss(value) * (name === "accumulate" ? sum : 1));
        if (spec.role === "finite") return numbers(spec, script.finite?.() ?? 0);
        if (spec.role === "mask") return numbers(spec, 0.5);
        return numbers(spec, spec.role === "correct" ? accuracy(value) * sum : value);
      };
      return new Map(signature.outputs.map((spec) => [spec.name, made(spec)]));
    },
    close: () => {
      record.isClosed = true;
    },
  });
}
