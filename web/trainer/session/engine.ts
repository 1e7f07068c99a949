import type { TrainingRuntime } from "../engines/runtime.ts";
import { DivergedError, RuntimeFailedError } from "../errors.ts";
import { byLength } from "../manifest/lengths.ts";
import { FEATURES, labelOf, type Manifest, ofRole, product, rowSize } from "../manifest/manifest.ts";
import type { Signature, TensorSpec } from "../manifest/manifest-records.ts";
import { FISHER } from "../manifest/manifest-rules.ts";
import { refusal } from "../manifest/refusal.ts";
import type { Program } from "../program/program.ts";
import type { Evaluation, Row, Values } from "../program/samples.ts";
import type { StoredTensor } from "../program/state-spec.ts";
import { isFiniteTensor } from "../state/state-file.ts";
import { type Batch, sum } from "./batches.ts";
import { ofFewestTokens, tokensIn } from "./lengths.ts";
import { Arguments, freeAll, type Memory, type Tensors, Variables, zeros } from "./memory.ts";

/** Called between two calls of the runtime; what it throws ends the work. */
export type Between = () => void;

/** The signatures of a program in a runtime, and its state. One call at a time: the trainer sees to that. */
export class Engine {
  private readonly manifest: Manifest;
  /** The loss of each row of the last step; of none where the program does not give it. */
  rowLosses: Float32Array = new Float32Array();
  private readonly memory: Memory;
  private isLost = false;

  /** Whether the last step ended before its update, and so left gradients in the accumulators. */
  private isHalfDone = false;

  constructor(
    private readonly program: Program,
    private readonly runtime: TrainingRuntime,
  ) {
    this.manifest = program.manifest;
    this.memory = this.manifest.isStateless
      ? new Arguments(this.manifest, runtime, program.initialState())
      : new Variables(this.manifest, runtime);
  }

  /**
   * A training step; returns the loss before it. The state is then not to be trusted if that is not finite. Throws
   * DivergedError: something that the step writes is not finite; nor is the state to be trusted then. `signature` takes
   * the rows: of the model's inputs, or of what its first layers gave.
   */
  async train(batch: Batch, rate: number, signature: string = this.manifest.stepName): Promise<number> {
    if (this.manifest.accumulates) return await this.trainByParts(batch, rate, signature);
    const outputs = await this.update(signature, rate, batch);
    this.rowLosses = Float32Array.from(rowLossesOf(outputs, batch));
    await this.checkWritten(outputs, lossOf(outputs), rate);
    return lossOf(outputs);
  }

  /** Adds up the gradients of micro-batches, then updates. */
  private async trainByParts(batch: Batch, rate: number, signature: string): Promise<number> {
    if (this.isHalfDone) await this.write(await this.read());
    this.isHalfDone = true;
    let sum = 0;
    const byRow: number[] = [];
    for (const part of batch.shares(this.manifest.microBatch)) {
      const outputs = await this.call(signature, part);
      sum += lossOf(outputs);
      byRow.push(...rowLossesOf(outputs, part));
    }
    this.rowLosses = Float32Array.from(byRow);
    const loss = Math.fround(sum);
    if (Number.isFinite(loss)) {
      await this.checkWritten(await this.update("apply", rate), loss, rate);
      this.isHalfDone = false;
    }
    return loss;
  }

  private async update(name: string, rate: number, batch?: Batch): Promise<Map<string, Values>> {
    const outputs = await this.call(name, batch, rate);
    this.memory.settle();
    return outputs;
  }

  /** Looks at what a step has written, where an operation of the program can be infinite at finite numbers. */
  private async checkWritten(outputs: Map<string, Values>, loss: number, rate: number): Promise<void> {
    const { manifest, program } = this;
    if (manifest.fields.poles.length === 0 || !Number.isFinite(loss)) return;
    const told = outputs.get("finite")?.[0];
    let isGood = told === undefined || Number.isFinite(told);
    if (manifest.isStateless) {
      const broken = (await this.memory.read()).filter((tensor) => !isFiniteTensor(tensor)).map(({ name }) => name);
      // What begins infinite, as the least loss so far, may stay so.
      isGood = !program.initialState().some((tensor) => broken.includes(tensor.name) && isFiniteTensor(tensor));
    }
    if (!isGood) throw new DivergedError(refusal(manifest, loss, rate));
  }

  /**
   * Mean loss and accuracy over all batches. Throws DivergedError: the loss is not finite. `signature` takes the rows: of
   * the model's inputs, or of what its first layers gave.
   */
  async evaluate(batches: Batch[], between: Between, signature = "evaluate"): Promise<Evaluation> {
    const { outputs: given } = this.manifest.signature(signature);
    const [mask] = ofRole(given, "mask");
    let [total, loss, right, places] = [0, 0, 0, 0];
    for (const batch of batches) {
      between();
      const outputs = await this.call(signature, batch);
      // The program's loss is a mean by weight, its count of right answers a sum.
      total += batch.weight;
      loss += lossOf(outputs) * batch.weight;
      right += outputs.get("correct")?.[0] ?? 0;
      // Right answers are a share of the places that count in all rows.
      places += mask ? placesOf(batch, outputs, mask) : batch.weight;
    }
    if (!Number.isFinite(loss)) throw new DivergedError(`the loss is ${loss}: restore a saved state or reset`);
    const counts = ofRole(given, "correct").length > 0;
    return { loss: loss / total, accuracy: counts ? (places > 0 ? right / places : 0) : null };
  }

  /** The Fisher information of each channel, by weight. Throws DivergedError: it is not finite. */
  async fisher(batches: Batch[]): Promise<Map<string, Float64Array>> {
    const sums = new Map<string, Float64Array>();
    const rows = batches.reduce((sum, batch) => sum + batch.rows.length, 0);
    for (const spec of this.manifest.signature("fisher").outputs) {
      sums.set(spec.name.slice(FISHER.length), new Float64Array(product(spec.shape)));
    }
    for (const batch of batches) {
      const outputs = await this.call("fisher", batch);
      for (const [name, sum] of sums) {
        for (const [i, value] of (outputs.get(FISHER + name) ?? []).entries())
          sum[i] = (sum[i] ?? 0) + value / (2 * rows);
      }
    }
    for (const [name, sum] of sums) {
      if (sum.every(Number.isFinite)) continue;
      throw new DivergedError(`the Fisher information of ${name} is not finite on these samples`);
    }
    return sums;
  }

  /** The outputs of all rows, by the signatures to call. */
  async infer(calls: [string, Batch][], between: Between): Promise<Row[]> {
    const rows: Row[] = [];
    for (const [name, batch] of calls) {
      between();
      const outputs = await this.call(name, batch);
      const [called] = ofFewestTokens(this.manifest, name, batch);
      const specs = ofRole(this.manifest.signature(called).outputs, "output");
      const isCut = byLength(this.manifest, name).length > 0;
      for (const [i, { inputs }] of batch.rows.entries()) {
        const tokens = isCut ? tokensIn(inputs) : undefined;
        rows.push(Object.fromEntries(specs.map((spec) => [spec.name, rowIn(outputs, spec, i, tokens)])));
      }
    }
    return rows;
  }

  /** A copy of the state. */
  async read(): Promise<StoredTensor[]> {
    this.checkNotLost();
    return await this.memory.read();
  }

  /** Replaces the state by tensors that were checked, and clears the accumulators. */
  async write(tensors: StoredTensor[]): Promise<void> {
    this.isLost = true;
    await this.memory.write(tensors);
    this.isLost = false;
    this.isHalfDone = false;
  }

  /** What a signature that leaves the state as it is gives for all that it takes beside the state. */
  async forward(name: string, given: Map<string, Values>): Promise<Map<string, Values>> {
    this.checkNotLost();
    return await this.run(name, given);
  }

  /** Calls a signature with a batch, of several lengths the one for the fewest tokens. */
  private async call(called: string, given?: Batch, rate = 0): Promise<Map<string, Values>> {
    this.checkNotLost();
    const [name, batch] = given ? ofFewestTokens(this.manifest, called, given) : [called, given];
    const rows = new Map<string, Values>();
    for (const spec of this.manifest.signature(name).inputs) {
      const values = batch && filled(spec, batch);
      if (values) rows.set(spec.name, values);
      if (spec.role === "learning_rate") rows.set(spec.name, Float32Array.of(rate));
    }
    return await this.run(name, rows);
  }

  /** Runs a signature; what it gives of the state stays in the memory, the rest is returned. */
  private async run(name: string, given: Map<string, Values>): Promise<Map<string, Values>> {
    const signature = this.manifest.signature(name);
    const onFeatures = this.manifest.behindFeatures.get(name);
    const put: Tensors = new Map();
    try {
      for (const spec of signature.inputs) {
        const values = given.get(spec.name);
        if (values) put.set(spec.name, this.runtime.put(spec, values));
      }
      if (onFeatures) await this.replaceByFeatures(put);
      return await this.results(
        await this.runtime.run(onFeatures ?? name, new Map([...put, ...this.memory.given(signature)])),
        signature,
      );
    } finally {
      freeAll(put);
    }
  }

  /** What the frozen first layers make of the model's inputs, in the place of these; it stays in the runtime's memory. */
  private async replaceByFeatures(put: Tensors): Promise<void> {
    const taken = this.manifest.signature(FEATURES).inputs.map(({ name }) => name);
    const inputs = new Map([...put].filter(([name]) => taken.includes(name)));
    const features = await this.runtime.run(FEATURES, inputs);
    for (const name of inputs.keys()) put.delete(name);
    freeAll(inputs);
    for (const [name, tensor] of features) put.set(name, tensor);
  }

  private async results(outputs: Tensors, signature: Signature): Promise<Map<string, Values>> {
    try {
      this.memory.take(outputs);
      const read = new Map<string, Values>();
      for (const { name } of signature.outputs) {
        const values = await outputs.get(name)?.read();
        if (values) read.set(name, values);
      }
      return read;
    } finally {
      freeAll(outputs);
    }
  }

  private checkNotLost(): void {
    if (this.isLost) throw new RuntimeFailedError("the runtime failed while its state was written: open it anew");
  }
}

/** The rows of an input; what lacks to a batch repeats the first one, a row that the model is known to take, with weight 0. */
function filled(spec: TensorSpec, batch: Batch): Values | undefined {
  if (spec.role !== "input" && spec.role !== "target" && spec.role !== "weight") return undefined;
  const values = zeros(spec.dtype, product(spec.shape));
  const size = rowSize(spec);
  for (let i = 0; i < (spec.shape[0] ?? 0); i++) {
    const row = batch.rows[i] ?? batch.rows[0];
    if (spec.role === "weight") values[i] = batch.weights[i] ?? 0;
    else values.set((spec.role === "input" ? row?.inputs[spec.name] : row?.targets[labelOf(spec)]) ?? [], i * size);
  }
  return values;
}

/** What is given for a row, of several lengths for as many tokens as it has. */
function rowIn(outputs: Map<string, Values>, spec: TensorSpec, row: number, tokens?: number): Values {
  const size = rowSize(spec);
  const given = tokens === undefined ? size : (size / (spec.shape[1] ?? 1)) * tokens;
  return outputs.get(spec.name)?.slice(row * size, row * size + given) ?? new Float32Array();
}

/** The weight of the rows, each by the share of its places that a mask leaves. */
function placesOf(batch: Batch, outputs: Map<string, Values>, mask: TensorSpec): number {
  const mean = (row: number) => sum([...rowIn(outputs, mask, row)].map(Number)) / rowSize(mask);
  return sum(batch.weights.map((weight, row) => weight * mean(row)));
}

/** The losses of the rows that a call was given; none where it does not give them. */
function rowLossesOf(outputs: Map<string, Values>, { rows }: Batch): number[] {
  return [...(outputs.get("row_losses") ?? [])].slice(0, rows.length);
}

function lossOf(outputs: Map<string, Values>): number {
  return outputs.get("loss")?.[0] ?? Number.NaN;
}
