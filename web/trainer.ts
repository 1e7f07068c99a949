/** Pocketune in a browser: trains a program of the compiler on LiteRT.js, with the contract of the Kotlin trainer. */
export * from "./trainer/errors.ts";
export { BY_PERSON, type PauseReason, type TrainEvent } from "./trainer/events.ts";
export type { Guard } from "./trainer/gate.ts";
export type { GenerateOptions, Sampling } from "./trainer/generation.ts";
export type { Adopt } from "./trainer/interchange.ts";
export { type LiteRtSource, liteRt } from "./trainer/litert.ts";
export type { Manifest } from "./trainer/manifest.ts";
export type { Signature, TensorSpec } from "./trainer/manifest-records.ts";
export { cosine, type LearningRate, type Limits, type Plan, warmUp } from "./trainer/plan.ts";
export { Program } from "./trainer/program.ts";
export type { Accelerator, RuntimeFactory, RuntimeReport, RuntimeTensor, TrainingRuntime } from "./trainer/runtime.ts";
export { type Evaluation, labelled, type Row, type Sample, type Values } from "./trainer/samples.ts";
export { BrowserStore, MemoryStore, type Store } from "./trainer/store.ts";
export { type FitOptions, type Restored, Trainer, type TrainerOptions } from "./trainer/trainer.ts";
