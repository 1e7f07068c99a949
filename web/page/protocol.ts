import type { Bytes } from "../trainer/bytes.ts";
import type { RuntimeReport, TrainEvent } from "../trainer.ts";
import type { Description } from "./description.ts";

/** The model in use. `personal`: it is not the one that was built. `generation`: of the saved state, 0 without any. */
export interface InUse {
  readonly personal: boolean;
  readonly generation: number;
}

/** What went wrong, by what the user can do about it. */
export type Problem =
  | "program-damaged"
  | "program-newer"
  | "state-damaged"
  | "state-older"
  | "state-foreign"
  | "storage"
  | "diverged"
  | "input"
  | "runtime"
  | "notes-damaged"
  | "elsewhere"
  | "offline"
  | "file-foreign"
  | "file-damaged";

/** An open program with the user's state, or why another one takes its place. */
export interface Opening {
  readonly report: RuntimeReport;
  readonly stateBytes: number;
  readonly inUse: InUse;
  readonly problem: Problem | null;
}

/** An image and what it is. */
export interface Lesson {
  readonly image: Float32Array;
  readonly label: number;
}

/** Logits of the two models for each image. */
export interface Logits {
  readonly original: readonly Float32Array[];
  readonly personal: readonly Float32Array[];
}

/** What the page asks of the worker that trains. What goes wrong there is thrown here as a Failure. */
export interface Coach {
  /** Opens the program that is described, with the user's state. */
  open(description: Description): Promise<Opening>;
  logits(images: readonly Float32Array[]): Promise<Logits>;
  /** Tells of each event, the last one too. False: it was cancelled. */
  train(lessons: readonly Lesson[], judged: readonly Lesson[]): Promise<boolean>;
  pause(): Promise<void>;
  resume(): Promise<void>;
  cancel(): Promise<void>;
  undo(): Promise<InUse>;
  reset(): Promise<InUse>;
  /** The user's model as a state file. */
  exportState(): Promise<Bytes>;
  importState(file: Bytes): Promise<InUse>;
}

/** A call of one of the coach's methods. */
export type Call = {
  [M in keyof Coach]: { readonly id: number; readonly method: M; readonly args: Parameters<Coach[M]> };
}[keyof Coach];

/** What the worker says: the result of a call, news of the training, or which share of the model has come in. */
export type Answer =
  | { readonly id: number; readonly result: unknown }
  | { readonly id: number; readonly problem: Problem; readonly message: string }
  | { readonly event: TrainEvent }
  | { readonly loaded: number };

/** Something that the user should know. */
export class Failure extends Error {
  constructor(
    readonly problem: Problem,
    message: string,
  ) {
    super(message);
  }
}
