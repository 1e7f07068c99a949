/** Pocketune in a browser: trains a program of the compiler on LiteRT.js, with the contract of the Kotlin trainer. */

export type { Bytes } from "./trainer/bytes.ts";
export { type LiteRtSource, liteRt } from "./trainer/engines/litert.ts";
export type {
  Accelerator,
  RuntimeFactory,
  RuntimeReport,
  RuntimeTensor,
  TrainingRuntime,
} from "./trainer/engines/runtime.ts";
export * from "./trainer/errors.ts";
export type { Manifest } from "./trainer/manifest/manifest.ts";
export type { Signature, StateTensor, TensorSpec } from "./trainer/manifest/manifest-records.ts";
export { places } from "./trainer/manifest/view.ts";
export { Program } from "./trainer/program/program.ts";
export { type Evaluation, labelled, type Row, type Sample, type Values } from "./trainer/program/samples.ts";
export type { Keeps } from "./trainer/replay/contents.ts";
export { ReplayMemory, type ReplayOptions } from "./trainer/replay/replay-memory.ts";
export { BY_PERSON, type PauseReason, type TrainEvent } from "./trainer/session/events.ts";
export type { Guard } from "./trainer/session/gate.ts";
export type { GenerateOptions, Sampling } from "./trainer/session/generation.ts";
export { cosine, type LearningRate, type Limits, type Plan, type SkipLearned, warmUp } from "./trainer/session/plan.ts";
export type { Shrinkage } from "./trainer/state/discriminant.ts";
export type { Adopt } from "./trainer/state/interchange.ts";
export { BrowserStore, MemoryStore, type Store } from "./trainer/state/store.ts";
export { type FitOptions, type Restored, Trainer, type TrainerOptions } from "./trainer/trainer.ts";
