import {
  type Certificate,
  type ChosenChannels,
  type Dtype,
  ELEMENT_BYTES,
  type Identity,
  type ManifestFields,
  type Role,
  type RunningRate,
  type Signature,
  type StateTensor,
  type TargetLabels,
  type TensorSpec,
} from "./manifest-records.ts";

/** What the only target is called; several are called this, a slash and a name of their own. */
export const TARGET = "y";

/** The signature that gives what the frozen first layers make of rows; what is behind the name of one that takes that. */
export const FEATURES = "features";
export const ON_FEATURES = "_features";

/** Elements of a shape. */
export function product(shape: readonly number[]): number {
  return shape.reduce((all, d) => all * d, 1);
}

/** Elements of one row: one step along the first axis. */
export function rowSize(spec: TensorSpec): number {
  return product(spec.shape.slice(1));
}

/** Bytes of a tensor. */
export function byteSize(tensor: { shape: number[]; dtype: Dtype }): number {
  return product(tensor.shape) * ELEMENT_BYTES[tensor.dtype];
}

/** What the app calls a tensor: of several targets each is `y/<label>`. */
export function labelOf(spec: TensorSpec): string {
  return spec.role === "target" && spec.name.startsWith(`${TARGET}/`) ? spec.name.slice(TARGET.length + 1) : spec.name;
}

/** The tensors of a role. */
export function ofRole(specs: TensorSpec[], role: Role): TensorSpec[] {
  return specs.filter((spec) => spec.role === role);
}

/** The rows of `infer_<rows>`; undefined for any other name of a signature. */
export function rowsToInfer(name: string): number | undefined {
  const rows = /^infer_([1-9][0-9]{0,8})$/.exec(name)?.[1];
  return rows === undefined ? undefined : Number(rows);
}

/** The rows that a call of a signature takes. */
export function rowsOf(signature: Signature): number {
  return ofRole(signature.inputs, "input")[0]?.shape[0] ?? 0;
}

/** What a program says about itself. */
export class Manifest {
  constructor(readonly fields: ManifestFields) {}

  get choices(): ChosenChannels[] {
    return this.fields.choices;
  }

  get certificates(): Certificate[] {
    return this.fields.certificates;
  }

  /** The labels that there are, by the name of each target that holds labels. */
  get targetLabels(): Map<string, TargetLabels> {
    return this.fields.target_labels;
  }

  /** Of a training that is given none; null where the rate runs in the program. */
  get learningRate(): number | null {
    return this.fields.learning_rate;
  }

  /** The rate that runs in the program, where one does. */
  get runningRate(): RunningRate | null {
    return this.fields.running_rate;
  }

  /** What a saved state belongs to; null where an older Pocketune built the program. */
  get identity(): Identity | null {
    return this.fields.identity;
  }

  get name(): string {
    return this.fields.name;
  }

  /** The names of the classes, in the order of the scores; null where nobody named them. */
  get labels(): string[] | null {
    return this.fields.labels;
  }

  /** Whether the program was found right on an engine, in this very version. */
  isCertified(on: string, engine: string, version: string): boolean {
    return this.certificates.some((it) => it.on === on && it.ok && it.engine === engine && it.version === version);
  }

  /** Of the operators, constants and built weights of this very program. */
  get graphHash(): string {
    return this.fields.graph_hash;
  }

  get stateTensors(): StateTensor[] {
    return this.fields.state_tensors;
  }

  get isStateless(): boolean {
    return this.fields.state === "stateless";
  }

  /** Rows of one step. */
  get batch(): number {
    return this.fields.batch;
  }

  /** Rows of one call. */
  get microBatch(): number {
    return this.fields.micro_batch;
  }

  /** Whether a step is a call of `accumulate` for each micro-batch and one of `apply`, in place of one of `train`. */
  get accumulates(): boolean {
    return this.microBatch < this.batch;
  }

  /** The name of the signature that takes the rows of a step. */
  get stepName(): "accumulate" | "gradients" | "train" {
    if (this.fields.state === "split") return "gradients";
    return this.accumulates ? "accumulate" : "train";
  }

  /** The name of the signature that takes what the frozen first layers gave, where a program offers `features`. */
  get stepOnFeatures(): string {
    return this.stepName + ON_FEATURES;
  }

  /** The signatures that the file has on features alone, by their own names: `features` is called before them. */
  get behindFeatures(): Map<string, string> {
    const { signatures } = this.fields;
    const named = signatures.has(FEATURES) ? [this.stepName, "evaluate", "infer"] : [];
    const alone = named.filter((name) => !signatures.has(name) && signatures.has(name + ON_FEATURES));
    return new Map(alone.map((name) => [name, name + ON_FEATURES]));
  }

  /** The name of the signature that changes the state. */
  get updatingName(): "apply" | "train" {
    return this.stepName === "train" ? "train" : "apply";
  }

  /** What may be called by a name: a signature of the file, or one that `features` is called before. */
  find(name: string): Signature | undefined {
    const { signatures } = this.fields;
    const onFeatures = signatures.get(this.behindFeatures.get(name) ?? "");
    const features = signatures.get(FEATURES);
    if (!onFeatures || !features) return signatures.get(name);
    return { ...onFeatures, inputs: [...features.inputs, ...onFeatures.inputs.filter(({ role }) => role !== "input")] };
  }

  /** A signature that the checks have found. */
  signature(name: string): Signature {
    const found = this.find(name);
    if (!found) throw new RangeError(`no signature '${name}'`);
    return found;
  }

  get step(): Signature {
    return this.signature(this.stepName);
  }

  get updating(): Signature {
    return this.signature(this.updatingName);
  }

  get infer(): Signature {
    return this.signature("infer");
  }

  /** The signatures that give the model's outputs, by the rows that each takes, the fewest first. */
  get infers(): Map<number, string> {
    const all = [...this.fields.signatures.keys(), ...this.behindFeatures.keys()];
    const names = all.filter((name) => name === "infer" || rowsToInfer(name) !== undefined);
    const byRows = names.map((name): [number, string] => [rowsOf(this.signature(name)), name]);
    return new Map(byRows.sort(([a], [b]) => a - b));
  }

  /** The loss of each target that has one of its own, by the target's name. */
  get losses(): Map<string, string> {
    const { loss } = this.fields;
    if (typeof loss === "string") return new Map([[TARGET, loss]]);
    return new Map(Object.entries(loss).map(([output, name]) => [`${TARGET}/${output}`, name]));
  }

  /** What the loss takes for the only target, whatever its name; undefined of several, and of one without labels. */
  get onlyLabels(): TargetLabels | undefined {
    const [target, another] = ofRole(this.step.inputs, "target");
    return target && !another ? this.targetLabels.get(target.name) : undefined;
  }

  /** How many answers a classifier chooses from; undefined when the only target is no label. */
  get classes(): number | undefined {
    const isLabel = ofRole(this.step.inputs, "target")[0]?.dtype === "int32";
    return (isLabel && this.onlyLabels?.count) || undefined;
  }

  /** Bytes of all state tensors. */
  get stateBytes(): number {
    return this.stateTensors.reduce((sum, tensor) => sum + byteSize(tensor), 0);
  }
}
