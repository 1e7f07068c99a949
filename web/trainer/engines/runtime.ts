import type { Dtype } from "../manifest/manifest-records.ts";
import type { Program } from "../program/program.ts";
import type { Values } from "../program/samples.ts";

/** What does the work. */
export type Accelerator = "wasm" | "webgpu";

/** What really runs, for the user to see. */
export interface RuntimeReport {
  /** Name and version of the library. */
  readonly runtime: string;
  readonly runs: Accelerator;
  /** Why it is not the graphics processor, where that was asked for. */
  readonly fallback: string | null;
}

/** A tensor in the runtime's own memory, until it is freed. */
export interface RuntimeTensor {
  /** A copy of its numbers. */
  read(): Promise<Values>;
  free(): void;
}

/**
 * A program loaded in an inference runtime. The trainer makes it, calls it and closes it, and never while a call runs.
 * All methods throw RuntimeFailedError.
 */
export interface TrainingRuntime {
  readonly report: RuntimeReport;
  /** A copy of numbers as a tensor. */
  put(spec: { shape: number[]; dtype: Dtype }, values: Values): RuntimeTensor;
  /** Runs a signature of the manifest. It leaves its inputs as they are, and gives every output in a tensor of its own. */
  run(signature: string, inputs: Map<string, RuntimeTensor>): Promise<Map<string, RuntimeTensor>>;
  close(): void;
}

/** Loads a program into a runtime. Throws RuntimeFailedError: the runtime does not take it. */
export type RuntimeFactory = (program: Program) => Promise<TrainingRuntime>;
