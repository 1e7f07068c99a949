import { InputError } from "../errors.ts";
import { byLength } from "../manifest/lengths.ts";
import { labelOf, type Manifest, ofRole, rowSize, rowsOf } from "../manifest/manifest.ts";
import type { Dtype, Signature, TargetLabels, TensorSpec } from "../manifest/manifest-records.ts";
import { redrawnOf } from "../manifest/redrawn.ts";
import { type Row, type Sample, type Values, weightOf } from "../program/samples.ts";
import { problemOf } from "./numbers.ts";
import type { Limits, SkipLearned, WholePlan } from "./plan.ts";

const MOST_REPLAY = 0.95;

/** What a user or app passes in, checked once, in plain words, before it reaches the runtime. Throws InputError. */
export class Inputs {
  private readonly taken: TensorSpec[];
  /** The tokens of its longest rows, of a program of several lengths. */
  private readonly longest: number | undefined;
  private readonly targets: TensorSpec[];
  private readonly losses: Map<string, string>;
  private readonly labels: Map<string, TargetLabels>;

  constructor(
    private readonly manifest: Manifest,
    private readonly limits: Limits,
  ) {
    this.taken = ofRole(manifest.infer.inputs, "input");
    this.longest = byLength(manifest, manifest.stepName).at(-1)?.[0];
    this.targets = ofRole(manifest.step.inputs, "target");
    this.losses = manifest.losses;
    this.labels = manifest.targetLabels;
  }

  /** Samples to train with; there must be something of weight above 0. */
  check(samples: readonly Sample[], what = "samples"): void {
    if (samples.length > this.limits.samples) this.tooMany(what, samples.length);
    for (const [i, sample] of samples.entries()) {
      const where = `${what}[${i}]`;
      this.inputs(where, sample.inputs);
      this.targetsOf(where, sample.targets, this.tokens(where, sample.inputs));
      const weight = weightOf(sample);
      if (!Number.isFinite(weight) || weight < 0) refuse(`${where}: its weight is ${sample.weight}`);
    }
    if (!samples.some((sample) => weightOf(sample) > 0)) refuse(`${what}: there is nothing of weight above 0`);
  }

  /** Samples for `evaluate`, which not every program has. */
  checkJudged(samples: readonly Sample[], what = "samples"): void {
    const evaluate = this.manifest.find("evaluate");
    if (!evaluate) {
      refuse(`${what}: this program has no signature 'evaluate': build it with --signatures train,evaluate,infer`);
    }
    this.check(samples, what);
    whole(what, evaluate, samples.filter((sample) => weightOf(sample) > 0).length);
  }

  /** Samples to choose channels by, for which not every program is made. */
  checkChoosing(samples: readonly Sample[]): void {
    if (!this.manifest.find("fisher")) {
      refuse("samples: this program has no signature 'fisher': build it with --signatures train,infer,fisher");
    }
    this.check(samples);
  }

  /** What an epoch of a training is made of. */
  checkEpoch(rows: number): void {
    whole("samples", this.manifest.step, rows);
  }

  /** Rows for `infer`. */
  checkRows(rows: readonly Row[]): void {
    if (rows.length > this.limits.samples) this.tooMany("rows", rows.length);
    for (const [i, row] of rows.entries()) this.inputs(`rows[${i}]`, row);
    if (rows.length === 0) refuse("rows: there are none");
    const { infer } = this.manifest;
    if (!this.manifest.infers.has(rows.length)) whole("rows", infer, rows.length);
    const other = ofRole(infer.outputs, "output").find((spec) => spec.shape[0] !== rowsOf(infer));
    if (other) refuse(`the output ${other.name} of this model is not one row for each row of its input`);
  }

  /** What a plan asks for. */
  checkPlan(plan: WholePlan): void {
    const { epochs, checkpointEvery, seed, firstEpoch, steps } = plan;
    if (!Number.isSafeInteger(epochs) || epochs < 1) refuse(`epochs must be at least 1, got ${epochs}`);
    if (!Number.isSafeInteger(seed)) refuse(`seed must be a whole number, got ${seed}`);
    if (!Number.isSafeInteger(firstEpoch) || firstEpoch < 0 || !((steps ?? 1) >= 1)) {
      refuse(`firstEpoch must not be below 0 and steps not below 1, got ${firstEpoch} and ${steps}`);
    }
    if (!Number.isSafeInteger(checkpointEvery) || checkpointEvery < 0) {
      refuse(`checkpointEvery must not be below 0, got ${checkpointEvery}`);
    }
    const patience = plan.earlyStop?.patience ?? 1;
    if (!(patience >= 1)) refuse(`earlyStop: patience must be at least 1, got ${patience}`);
    if (plan.balanceClasses && (this.manifest.onlyLabels?.count ?? null) === null) {
      refuse("balanceClasses: this model knows no classes");
    }
    if (plan.skip) this.checkSkip(plan.skip, firstEpoch);
    if (plan.redraw) this.checkRedrawn();
    if (!plan.replay) return;
    const { share, samples } = plan.replay;
    if (!(share >= 0 && share <= MOST_REPLAY)) refuse(`replay: the share is from 0 to ${MOST_REPLAY}, not ${share}`);
    if (samples.length > 0) this.check(samples, "replay");
  }

  /** Other channels may train while a training goes on. */
  checkRedrawn(): void {
    if (redrawnOf(this.manifest.fields).length > 0) return;
    refuse(
      `redrawing channels: no weight of ${this.manifest.name} is state that takes up what is added to its channels: ` +
        "build it with --update channels-10-redrawn",
    );
  }

  private checkSkip({ below, revisit }: Required<SkipLearned>, firstEpoch: number): void {
    if (!(below > 0 && Number.isFinite(below))) refuse(`skip: below is a loss above 0, for example 0.03, not ${below}`);
    if (!Number.isSafeInteger(revisit) || revisit < 2) {
      refuse(`skip: revisit must be at least 2 (all rows come every so many epochs), got ${revisit}`);
    }
    if (ofRole(this.manifest.step.outputs, "row_losses").length === 0) {
      refuse(
        `skip: a step of ${this.manifest.name} does not give the loss of each row: build it with --row-losses on. A saved ` +
          "state continues there",
      );
    }
    if (firstEpoch % revisit !== 0) {
      refuse(
        `skip: the losses of the epochs before firstEpoch ${firstEpoch} are not known: continue with one in which all ` +
          `rows come, a multiple of ${revisit}`,
      );
    }
  }

  /** The tokens of a row of a program of several lengths; undefined of others. */
  private tokens(where: string, row: Row): number | undefined {
    const [first] = this.taken;
    const tokens = first && own(row, first.name)?.length;
    if (this.longest === undefined || tokens === undefined) return undefined;
    if (tokens >= 1 && tokens <= this.longest) return tokens;
    refuse(
      `${where}: ${tokens} tokens, and rows of this program have 1 to ${this.longest}: cut the text into parts, or build ` +
        "it with a larger length",
    );
  }

  private inputs(where: string, row: Row): void {
    if (ArrayBuffer.isView(row) || Array.isArray(row)) {
      const [first] = this.taken;
      refuse(`${where}: a row names its inputs: { ${first?.name}: values }; ${came(row)} came`);
    }
    const tokens = this.tokens(where, row);
    for (const spec of this.taken) {
      values(
        `${where}.${spec.name}`,
        spec,
        own(row, spec.name) ?? refuse(`${where}: the input ${spec.name} is missing: ${expected(this.taken, row)}`),
        tokens,
      );
    }
    const known = this.taken.map((spec) => spec.name);
    const other = Object.keys(row).find((name) => !known.includes(name));
    if (other !== undefined) refuse(`${where}: the model has no input '${other}', only ${known.join(", ")}`);
  }

  private targetsOf(where: string, targets: Row, tokens?: number): void {
    for (const spec of this.targets) {
      const target =
        own(targets, labelOf(spec)) ??
        refuse(`${where}: the target ${labelOf(spec)} is missing: ${expected(this.targets, targets)}`);
      values(`${where}.${spec.name}`, spec, target, tokens);
      const known = this.labels.get(spec.name);
      const problem = known && problemOf(known, this.losses.get(spec.name) ?? "its loss", target);
      if (problem) refuse(`${where}.${spec.name}: ${problem}`);
    }
    const known = this.targets.map(labelOf);
    const other = Object.keys(targets).find((name) => !known.includes(name));
    if (other !== undefined) refuse(`${where}: the program takes no target '${other}', only ${known.join(", ")}`);
  }

  private tooMany(what: string, size: number): never {
    refuse(`${what}: ${size} are too many, the limit is ${this.limits.samples}`);
  }
}

function own(row: Row, name: string): Values | undefined {
  return Object.hasOwn(row, name) ? row[name] : undefined;
}

/** What a program takes, and what came in its place. */
function expected(specs: TensorSpec[], row: Row): string {
  const wanted = specs.map((spec) => `${labelOf(spec)} (${rowSize(spec)} x ${spec.dtype})`).join(", ");
  const given = Object.entries(row).map(([name, each]) => `${name} (${came(each)})`);
  return `it takes ${wanted}, and ${given.length > 0 ? given.join(", ") : "nothing"} came`;
}

/** What was passed in, in words. */
function came(value: unknown): string {
  if (!ArrayBuffer.isView(value)) return Array.isArray(value) ? `an Array of ${value.length}` : String(value);
  return `${value.constructor.name} of ${(value as Values).length}`;
}

function values(where: string, spec: TensorSpec, values: Values, size = rowSize(spec)): void {
  if (!ArrayBuffer.isView(values)) refuse(`${where}: expected ${size} x ${spec.dtype}, got ${came(values)}`);
  const dtype = dtypeOf(values, spec.dtype);
  if (dtype !== spec.dtype || values.length !== size) {
    refuse(`${where}: expected ${size} x ${spec.dtype}, got ${values.length} x ${dtype}`);
  }
  if (values instanceof Float32Array && !values.every(Number.isFinite)) refuse(`${where}: holds NaN or infinity`);
}

/** The type of some numbers; bytes are bools where the program takes these. */
function dtypeOf(values: Values, wanted: Dtype): Dtype {
  if (values instanceof Float32Array) return "float32";
  if (values instanceof Int32Array) return "int32";
  if (values instanceof Int16Array) return "int16";
  if (values instanceof Int8Array) return "int8";
  return wanted === "uint8" ? "uint8" : "bool";
}

/** A short batch is not filled up where the rows that fill it would change what the others give. */
function whole(what: string, signature: Signature, rows: number): void {
  const size = rowsOf(signature);
  if ((signature.mixing ?? null) === null || rows % size === 0) return;
  refuse(
    `${what}: rows of a batch influence each other in this program (${signature.mixing}), so it takes whole batches of ` +
      `${size}, and ${rows} rows of weight above 0 cannot be filled up`,
  );
}

function refuse(problem: string): never {
  throw new InputError(problem);
}
