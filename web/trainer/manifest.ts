import {
  anything,
  bool,
  type Decoded,
  integer,
  list,
  mapOf,
  nullable,
  number,
  object,
  oneOf,
  record,
  string,
} from "./strict-json.ts";

/** Type of the elements of a tensor; int8 is that of kept features only. */
export type Dtype = Decoded<typeof dtype>;
const dtype = oneOf("float32", "int32", "bool", "int8");

/** Type of the elements of what is stored. */
export type StoredDtype = Decoded<typeof storedDtype>;
export const storedDtype = oneOf("float32", "int32", "bool");

/** Bytes of one element. */
export const ELEMENT_BYTES: Record<Dtype, number> = { float32: 4, int32: 4, bool: 1, int8: 1 };

/** Who feeds or reads a tensor of a signature. */
export type Role = Decoded<typeof role>;
const role = oneOf(
  "input",
  "target",
  "weight",
  "learning_rate",
  "state",
  "gradient",
  "tick",
  "loss",
  "correct",
  "figure",
  "mask",
  "output",
  "fisher",
  "done",
);

/** An input or output of a signature. */
export type TensorSpec = Decoded<typeof tensorSpec>;
const tensorSpec = record({ name: string, shape: list(integer), dtype, role });

/** One entry point of a program. `mixing`: where rows of a batch influence each other, in words. */
export type Signature = Decoded<typeof signature>;
const signature = record({ inputs: list(tensorSpec), outputs: list(tensorSpec) }, { mixing: nullable(string) });

/**
 * A state tensor in the model's own terms, which programs of all targets and batch sizes share: the name of the parameter
 * or slot, the shape of the whole parameter in the model's own layout, and how the state tensor is cut out of that.
 */
export type ModelTensor = Decoded<typeof modelTensor>;
export const modelTensor = record({ name: string, shape: list(integer), view: list(anything) });

/** A tensor that outlives a step: a trained one, or a `slot` of the optimizer. `model`: missing in older programs. */
export type StateTensor = Decoded<typeof stateTensor>;
const stateTensor = record(
  { tensor: string, shape: list(integer), dtype: storedDtype, slot: bool },
  { model: nullable(modelTensor) },
);

/** A weight, or the part of one, that does not train. `digest`: of the numbers that do not. */
export type FrozenWeight = Identity["frozen"][number];

/**
 * What two programs must have in common beside their state tensors for one to go on with the other's state: digests of
 * how the optimizer computes an update, of what the model computes of its inputs and weights, of the weights that do not
 * train, in the order in which the model reads them, and of what became int8, empty where nothing did. `version`: of the
 * way in which `update` and `forward` are computed.
 */
export type Identity = Decoded<typeof identity>;
export const identity = record({
  optimizer: string,
  update: string,
  forward: string,
  frozen: list(record({ name: string, shape: list(integer), digest: string })),
  int8: string,
  version: integer,
});

/** Whether the digests of an identity are such. */
export function isGoodIdentity({ update, forward, int8, frozen }: Identity): boolean {
  const digests = [update, forward, int8 || forward, ...frozen.map((weight) => weight.digest)];
  return digests.every((digest) => /^[0-9a-f]{16}$/.test(digest));
}

/** A trained weight by the model's own name, in its layout. `frozen`: the part of it that does not train. */
export type ParameterSpec = Decoded<typeof parameterSpec>;
const parameterSpec = record({
  name: string,
  shape: list(integer),
  dtype: storedDtype,
  pieces: list(record({ tensor: string, view: list(anything) })),
  frozen: nullable(record({ entry: string, shape: list(integer), view: list(anything) })),
});

/** A frozen weight of which some input channels are changed. `indices`: the state tensor that says which. */
export type ChosenChannels = Decoded<typeof chosenChannels>;
const chosenChannels = record({ weight: string, channels: integer, indices: string, change: string });

/**
 * The labels that a target holds: those from 0 to `count` - 1, and what the loss leaves out: those below 0 if they are
 * `masked`, and one that is `ignored`, be it among the others or beyond them.
 */
export type TargetLabels = Decoded<typeof targetLabels>;
const targetLabels = record({ count: integer }, { masked: bool, ignored: nullable(integer) });

/** What came of running the program on an engine beside the CPU; it says nothing of another version of the engine. */
export type Certificate = Decoded<typeof certificate>;
const certificate = record(
  {
    on: string,
    engine: string,
    version: string,
    driver: string,
    date: string,
    steps: integer,
    ok: bool,
    whole: bool,
    precision: string,
  },
  {
    loss_error: nullable(number),
    update_error: nullable(number),
    output_error: nullable(number),
    floor: nullable(number),
    failures: list(record({ layer: string, operator: string, what: string }, { advice: string })),
  },
);

/**
 * A learning rate that the program computes itself. From step `zero_from` on, counted by the state tensor `counter` where
 * there is one, it is 0.
 */
export type RunningRate = Decoded<typeof runningRate>;
const runningRate = record({ description: string }, { zero_from: nullable(integer), counter: nullable(string) });

/** The fields of a manifest, in the program's own words. */
export type ManifestFields = Decoded<typeof manifestFields>;
export const manifestFields = record(
  {
    format: string,
    name: string,
    graph_hash: string,
    target: string,
    state: oneOf("variables", "stateless"),
    batch: integer,
    micro_batch: integer,
    loss: anything,
    optimizer: string,
    update: record({ scheme: string, table: list(record({ parameter: string, fraction: number, why: string })) }),
    signatures: mapOf(signature),
    state_tensors: list(stateTensor),
    parameters: list(parameterSpec),
    costs: mapOf(nullable(number)),
  },
  {
    labels: nullable(list(string)),
    preprocessing: nullable(object),
    frozen: oneOf("float32", "int8"),
    learning_rate: nullable(number),
    running_rate: nullable(runningRate),
    choices: list(chosenChannels),
    loss_scale: number,
    certificates: list(certificate),
    target_labels: mapOf(targetLabels),
    identity: nullable(identity),
  },
);

/** What the only target is called; several are called this, a slash and a name of their own. */
export const TARGET = "y";

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

/** Whether a label is one of those that a target holds. */
export function isLabel({ count, masked, ignored }: TargetLabels, label: number): boolean {
  return label === ignored || (label < count && (masked === true || label >= 0));
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
  readonly choices: ChosenChannels[];
  readonly certificates: Certificate[];
  /** The labels that there are, by the name of each target that holds labels. */
  readonly targetLabels: Map<string, TargetLabels>;
  /** Of a training that is given none; null where the rate runs in the program. */
  readonly learningRate: number | null;
  /** The rate that runs in the program, where one does. */
  readonly runningRate: RunningRate | null;
  /** What a saved state belongs to; null where an older Pocketune built the program. */
  readonly identity: Identity | null;

  constructor(readonly fields: ManifestFields) {
    this.choices = fields.choices ?? [];
    this.certificates = fields.certificates ?? [];
    this.targetLabels = fields.target_labels ?? new Map();
    this.learningRate = fields.learning_rate ?? null;
    this.runningRate = fields.running_rate ?? null;
    this.identity = fields.identity ?? null;
  }

  get name(): string {
    return this.fields.name;
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
  get stepName(): "accumulate" | "train" {
    return this.accumulates ? "accumulate" : "train";
  }

  /** The name of the signature that changes the state. */
  get updatingName(): "apply" | "train" {
    return this.accumulates ? "apply" : "train";
  }

  find(name: string): Signature | undefined {
    return this.fields.signatures.get(name);
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
    const names = [...this.fields.signatures.keys()].filter((n) => n === "infer" || rowsToInfer(n) !== undefined);
    const byRows = names.map((name): [number, string] => [rowsOf(this.signature(name)), name]);
    return new Map(byRows.sort(([a], [b]) => a - b));
  }

  /** The loss of each target that has one of its own, by the target's name. */
  get losses(): Map<string, string> {
    const { loss } = this.fields;
    if (typeof loss === "string") return new Map([[TARGET, loss]]);
    return new Map(
      Object.entries(loss as Record<string, string>).map(([output, name]) => [`${TARGET}/${output}`, name]),
    );
  }

  /** How many answers a classifier chooses from; undefined when the only target is no label. */
  get classes(): number | undefined {
    return this.targetLabels.get(TARGET)?.count;
  }

  /** Bytes of all state tensors. */
  get stateBytes(): number {
    return this.stateTensors.reduce((sum, tensor) => sum + byteSize(tensor), 0);
  }
}
