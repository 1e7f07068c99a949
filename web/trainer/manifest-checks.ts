import { DamagedProgramError, NewerProgramError } from "./errors.ts";
import {
  byteSize,
  type Certificate,
  type Dtype,
  isGoodIdentity,
  Manifest,
  manifestFields,
  ofRole,
  type ParameterSpec,
  product,
  type Role,
  rowsOf,
  rowsToInfer,
  type Signature,
  type StateTensor,
  TARGET,
  type TensorSpec,
} from "./manifest.ts";
import { decode, FormatError, parse } from "./strict-json.ts";
import { givesElements, viewed } from "./view.ts";

const FORMAT = "pocketune/1";
const FROZEN = "pocketune.frozen/";

/** What an accumulator is called: this, and the state tensor whose gradient it holds. */
const GRADIENT = "gradient/";
const MASK = "mask/";

/** What the Fisher information of a weight's channels is called: this, and the weight's name. */
export const FISHER = "fisher/";

/** No manifest is larger. */
const MAX_BYTES = 4 << 20;
const MAX_TENSOR_BYTES = 2 ** 31 - 1;

const INPUT_ROLES: Role[] = ["input", "target", "weight", "learning_rate", "state", "gradient", "tick"];
const OUTPUT_ROLES: Role[] = ["loss", "correct", "figure", "mask", "output", "fisher", "state", "gradient", "done"];
const ROW_ROLES: Role[] = ["input", "target", "weight"];

/** Roles that every program gives the same name, float32 and one number; `weight` has one a row. */
const NAMED_ROLES: Role[] = ["weight", "learning_rate", "tick", "loss", "correct", "done"];

/**
 * A checked manifest from the metadata entry. Throws DamagedProgramError: a field is missing, unknown or ill-typed, or
 * two of them contradict each other; NewerProgramError: it is of a format that is not known here.
 */
export function readManifest(bytes: Uint8Array): Manifest {
  if (bytes.length > MAX_BYTES) fail(`${bytes.length} bytes, more than ${MAX_BYTES}`);
  let manifest: Manifest;
  try {
    const parsed = parse(bytes);
    const { format, state } = (parsed ?? {}) as Record<string, unknown>;
    if (typeof format === "string" && format !== FORMAT) {
      throw new NewerProgramError(`manifest: format '${format}' is not known here, only '${FORMAT}': update the page`);
    }
    if (state === "split") fail('its state is "split", and a browser takes the others: build it with target="web"');
    manifest = new Manifest(decode(manifestFields, bytes, "manifest"));
  } catch (error) {
    if (error instanceof FormatError) throw new DamagedProgramError(`manifest: ${error.message}`);
    throw error;
  }
  new ManifestChecks(manifest).check();
  return manifest;
}

/** The rules between the fields. */
class ManifestChecks {
  private readonly state: Map<string, StateTensor>;
  private readonly stepOnFeatures: string;
  private readonly otherInfers: string[];

  constructor(private readonly manifest: Manifest) {
    this.state = new Map(manifest.stateTensors.map((tensor) => [tensor.tensor, tensor]));
    this.stepOnFeatures = `${manifest.stepName}_features`;
    this.otherInfers = [...manifest.fields.signatures.keys()].filter((name) => rowsToInfer(name) !== undefined);
  }

  check(): void {
    const { manifest } = this;
    if (!/^[0-9a-f]{64}$/.test(manifest.graphHash)) fail("graph_hash: expected 64 hexadecimal digits");
    if (manifest.batch < 1) fail(`batch: must be at least 1, got ${manifest.batch}`);
    if (manifest.microBatch < 1 || manifest.batch % manifest.microBatch !== 0) {
      fail(`micro_batch: ${manifest.microBatch} is no part of a batch of ${manifest.batch}`);
    }
    unique(
      "state_tensors",
      manifest.stateTensors.map((tensor) => tensor.tensor),
    );
    unique(
      "parameters",
      manifest.fields.parameters.map((parameter) => parameter.name),
    );
    for (const tensor of manifest.stateTensors) {
      shape(`state_tensors.${tensor.tensor}`, tensor.shape, tensor.dtype);
      if (tensor.model && !givesElements(tensor.model, tensor.shape)) {
        fail(`state_tensors.${tensor.tensor}: its view gives another shape`);
      }
    }
    if (manifest.identity && !isGoodIdentity(manifest.identity)) {
      fail("identity: expected digests of 16 hexadecimal digits");
    }
    this.losses();
    this.rate();
    this.names();
    for (const [name, signature] of manifest.fields.signatures) this.signature(`signatures.${name}`, signature);
    this.roles();
    this.rows();
    this.targets();
    this.features();
    this.accumulators();
    this.choices();
    this.allState();
    for (const parameter of manifest.fields.parameters) this.parameter(parameter);
    unique(
      "certificates",
      manifest.certificates.map((certificate) => certificate.on),
    );
    for (const certificate of manifest.certificates) this.certificate(certificate);
  }

  private certificate(certificate: Certificate): void {
    const where = `certificates.${certificate.on}`;
    if (!/^(gpu|web|android|hexagon:[A-Z0-9]+)$/.test(certificate.on)) fail(`${where}: no engine that is known here`);
    if (!/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$/.test(certificate.date)) {
      fail(`${where}: '${certificate.date}' is no time in UTC`);
    }
    if (certificate.steps < 1) fail(`${where}: ${certificate.steps} steps`);
    const { loss_error, update_error, output_error, floor, failures = [] } = certificate;
    if ([loss_error, update_error, output_error, floor].some((error) => (error ?? 0) < 0)) {
      fail(`${where}: an error below zero`);
    }
    if (certificate.ok && (!certificate.whole || failures.length > 0 || update_error == null)) {
      fail(`${where}: it says that all is well, and that something is not`);
    }
    if (failures.length > 20) fail(`${where}: more than 20 failures`);
  }

  private names(): void {
    const { signatures } = this.manifest.fields;
    const moves = this.manifest.isStateless ? [] : ["save", "restore", "initialize"];
    const onFeatures = signatures.has("features") ? [this.stepOnFeatures] : [];
    const wanted = [this.manifest.stepName, this.manifest.updatingName, "infer", ...moves, ...onFeatures];
    for (const name of wanted) {
      if (!signatures.has(name)) fail(`signatures: '${name}' is missing: build with --signatures train,infer,...`);
    }
    const known = [...wanted, "evaluate", "features", "fisher", ...this.otherInfers];
    for (const name of signatures.keys()) {
      if (!known.includes(name)) fail(`signatures: '${name}' is none of such a program`);
    }
  }

  /** One learning rate: a number, or one that runs in the program and counts by the state. */
  private rate(): void {
    const { learningRate, runningRate } = this.manifest;
    if ((learningRate === null) === (runningRate === null)) {
      fail(
        "learning_rate: it is a number, or running_rate says how it runs in the program, one of both; programs of an older Pocketune say neither: build it again",
      );
    }
    if (learningRate !== null && !(Number.isFinite(learningRate) && learningRate >= 0))
      fail(`learning_rate: ${learningRate} is none`);
    if ((runningRate?.zero_from ?? 0) < 0) {
      fail(`running_rate.zero_from: ${runningRate?.zero_from} is no number of a step`);
    }
    const counter = runningRate?.counter ?? null;
    const tensor = counter === null ? null : this.state.get(counter);
    if (tensor !== null && (tensor?.dtype !== "float32" || tensor.shape.join() !== "1")) {
      fail(`running_rate.counter: '${counter}' is no number of the state`);
    }
  }

  private roles(): void {
    const step: Role[] = this.manifest.accumulates ? ["weight", "loss"] : ["weight", "loss", "learning_rate"];
    for (const name of [this.manifest.stepName, this.stepOnFeatures]) this.rolesOf(name, step, ["input"]);
    this.rolesOf("apply", ["learning_rate"], []);
    this.rolesOf("evaluate", ["weight", "loss"], ["input"]);
    this.rolesOf("fisher", ["weight"], ["input", "fisher"]);
    for (const name of ["infer", "features", ...this.otherInfers]) this.rolesOf(name, [], ["input", "output"]);
  }

  private rolesOf(name: string, one: Role[], several: Role[]): void {
    const signature = this.manifest.find(name);
    if (!signature) return;
    const found = [...signature.inputs, ...signature.outputs].map((spec) => spec.role);
    for (const role of one) {
      if (found.filter((each) => each === role).length !== 1) {
        fail(`signatures.${name}: takes one tensor of role ${role}`);
      }
    }
    for (const role of several) if (!found.includes(role)) fail(`signatures.${name}: nothing of role ${role}`);
  }

  /** What a model takes is the same for all signatures, but for the number of rows. */
  private rows(): void {
    const { manifest } = this;
    for (const name of [manifest.stepName, this.stepOnFeatures, "evaluate", "fisher"]) {
      for (const spec of manifest.find(name)?.inputs ?? []) {
        if (ROW_ROLES.includes(spec.role) && spec.shape[0] !== manifest.microBatch) {
          const call = `a call takes ${manifest.microBatch}`;
          fail(`signatures.${name}.${spec.name}: first axis ${spec.shape[0]}, ${call}`);
        }
      }
    }
    const giving = ["infer", "features", ...this.otherInfers];
    for (const name of giving) {
      const axes = ofRole(manifest.find(name)?.inputs ?? [], "input").map((spec) => spec.shape[0]);
      if (new Set(axes).size > 1) fail(`signatures.${name}: the first axes of its inputs differ`);
    }
    for (const name of this.otherInfers) {
      const signature = manifest.signature(name);
      if (rowsOf(signature) !== rowsToInfer(name)) fail(`signatures.${name}: it takes other rows`);
      if (
        facts(ofRole(signature.outputs, "output"), 1).join() !==
        facts(ofRole(manifest.infer.outputs, "output"), 1).join()
      ) {
        fail(`signatures.${name}: what it gives is not what infer gives`);
      }
    }
    for (const name of ["evaluate", "fisher"]) for (const role of ["input", "target"] as const) this.same(name, role);
    for (const name of giving) this.same(name, "input");
  }

  private same(name: string, role: Role): void {
    const signature = this.manifest.find(name);
    if (!signature) return;
    const { step } = this.manifest;
    if (!areSame(facts(ofRole(signature.inputs, role), 1), facts(ofRole(step.inputs, role), 1))) {
      fail(`signatures.${name}: what it takes of role ${role} is not what ${this.manifest.stepName} takes`);
    }
  }

  private losses(): void {
    const { loss } = this.manifest.fields;
    const isByOutput = typeof loss === "object" && loss !== null && !Array.isArray(loss);
    const each = isByOutput ? Object.values(loss) : [loss];
    if (each.length === 0 || each.some((name) => typeof name !== "string")) {
      fail("loss: expected a name, or one by output");
    }
  }

  /** One is `y`, several are `y/...`, and some losses take none; losses and labels are those of the targets. */
  private targets(): void {
    const targets = ofRole(this.manifest.step.inputs, "target");
    const names = targets.map((spec) => spec.name);
    for (const [name, { count }] of this.manifest.targetLabels) {
      if (count < 1 || !targets.some((spec) => spec.name === name && spec.dtype === "int32")) {
        fail(`target_labels.${name}: ${count} labels, or no int32 target of that name`);
      }
    }
    const isOne = names.length === 1 && names[0] === TARGET;
    if (!isOne && !names.every((name) => name.startsWith(`${TARGET}/`))) fail(`the targets are ${names.join(", ")}`);
    if (typeof this.manifest.fields.loss === "string") return;
    const losses = [...this.manifest.losses.keys()];
    const owners = names.map((name) => losses.find((loss) => `${name}/`.startsWith(`${loss}/`)) ?? "");
    if (!areSame(owners, losses)) {
      fail(`loss: those of ${losses.join(", ")}, and the targets are ${names.join(", ")}`);
    }
  }

  /** What the frozen first layers give is what the step on it takes. */
  private features(): void {
    const features = this.manifest.find("features");
    if (!features) return;
    const taken = ofRole(this.manifest.signature(this.stepOnFeatures).inputs, "input");
    if (facts(ofRole(features.outputs, "output"), 0).join() !== facts(taken, 0).join()) {
      fail(`signatures.${this.stepOnFeatures}: its inputs are not what features gives`);
    }
  }

  /** In a stateless program they go in and out of the calls of a step; elsewhere nobody sees them. */
  private accumulators(): void {
    const { manifest } = this;
    const chosen = manifest.choices.map((choice) => choice.indices);
    const trained = manifest.stateTensors
      .filter((tensor) => !tensor.slot && !chosen.includes(tensor.tensor))
      .map((tensor) => GRADIENT + tensor.tensor);
    const passing: string[] = [manifest.stepName, this.stepOnFeatures, manifest.updatingName];
    const isPassed = manifest.accumulates && manifest.isStateless;
    for (const [name, signature] of manifest.fields.signatures) {
      const isPart = isPassed && passing.includes(name);
      const check = (side: string, specs: TensorSpec[], isHere: boolean) => {
        const names = ofRole(specs, "gradient").map((spec) => spec.name);
        if (!areSame(names, isHere ? trained : [])) {
          fail(`signatures.${name}: the accumulators among its ${side} are not those of what trains`);
        }
      };
      check("inputs", signature.inputs, isPart);
      check("outputs", signature.outputs, isPart && name !== manifest.updatingName);
    }
  }

  /** Each has a list of channels and a change of its own, and `fisher` weighs all of them. */
  private choices(): void {
    const { choices, fields } = this.manifest;
    unique(
      "choices",
      choices.map((choice) => choice.weight),
    );
    unique(
      "choices",
      choices.map((choice) => choice.indices),
    );
    for (const choice of choices) {
      const where = `choices.${choice.weight}`;
      const indices = this.state.get(choice.indices);
      if (indices?.dtype !== "int32" || indices.shape.length !== 1) {
        fail(`${where}: '${choice.indices}' is no list of channels in state_tensors`);
      }
      if ((indices.shape[0] ?? 0) > choice.channels)
        fail(`${where}: ${indices.shape[0]} of ${choice.channels} channels`);
      if (!fields.parameters.some((parameter) => parameter.name === choice.change)) {
        fail(`${where}: '${choice.change}' is not in parameters`);
      }
    }
    const fisher = this.manifest.find("fisher");
    const weighed = choices.map((choice) => `${FISHER}${choice.weight}[${choice.channels}]float32`);
    if (fisher && !areSame(facts(ofRole(fisher.outputs, "fisher"), 0), weighed)) {
      fail("signatures.fisher: what it gives is not one number for each channel of the choices");
    }
  }

  private allState(): void {
    const { manifest } = this;
    const found: [string, TensorSpec[]][] = manifest.isStateless
      ? [[manifest.updatingName, manifest.updating.inputs]]
      : [
          ["save", manifest.signature("save").outputs],
          ["restore", manifest.signature("restore").inputs],
        ];
    for (const [name, specs] of found) {
      const names = ofRole(specs, "state").map((spec) => spec.name);
      if (!areSame(names, [...this.state.keys()])) {
        fail(`signatures.${name}: its state is not the tensors of state_tensors`);
      }
    }
  }

  private signature(where: string, signature: Signature): void {
    for (const side of ["inputs", "outputs"] as const) {
      const specs = signature[side];
      if (specs.length === 0) fail(`${where}: no ${side}`);
      unique(
        `${where}.${side}`,
        specs.map((spec) => spec.name),
      );
      for (const spec of specs)
        this.tensor(`${where}.${spec.name}`, spec, side === "inputs" ? INPUT_ROLES : OUTPUT_ROLES);
    }
  }

  private tensor(where: string, spec: TensorSpec, roles: Role[]): void {
    shape(where, spec.shape, spec.dtype);
    if (!roles.includes(spec.role)) fail(`${where}: role ${spec.role} on this side`);
    if (NAMED_ROLES.includes(spec.role)) {
      if (spec.name !== spec.role || spec.dtype !== "float32") {
        fail(`${where}: role ${spec.role} belongs to a float32 of that name`);
      }
      const isNumber = spec.shape.length === 1 && (spec.role === "weight" || spec.shape[0] === 1);
      if (!isNumber) fail(`${where}: bad shape [${spec.shape}]`);
    }
    if (spec.role === "mask" && (spec.dtype !== "float32" || !spec.name.startsWith(MASK))) {
      fail(`${where}: a mask is of float32 and called ${MASK}...`);
    }
    if (spec.role === "figure" && (spec.dtype !== "float32" || spec.shape.join() !== "1")) {
      fail(`${where}: a figure is one float32`);
    }
    if (spec.role !== "state" && spec.role !== "gradient") return;
    const stored = this.state.get(spec.role === "state" ? spec.name : spec.name.replace(GRADIENT, ""));
    if (stored?.shape.join() !== spec.shape.join() || stored.dtype !== spec.dtype) {
      fail(`${where}: does not agree with state_tensors`);
    }
  }

  private parameter(parameter: ParameterSpec): void {
    const where = `parameters.${parameter.name}`;
    shape(where, parameter.shape, parameter.dtype, 0);
    if (parameter.pieces.length === 0) fail(`${where}: no pieces`);
    for (const piece of parameter.pieces) {
      const stored = this.state.get(piece.tensor) ?? fail(`${where}: '${piece.tensor}' is not in state_tensors`);
      view(where, parameter, piece.view, stored.shape);
    }
    const { frozen } = parameter;
    if (!frozen) return;
    if (!frozen.entry.startsWith(FROZEN)) fail(`${where}: the frozen part must be a metadata entry ${FROZEN}...`);
    shape(`${where}.frozen`, frozen.shape, parameter.dtype);
    view(where, parameter, frozen.view, frozen.shape);
  }
}

function view(where: string, parameter: ParameterSpec, steps: unknown[], stored: number[]): void {
  const cut = steps.reduce<number[]>(
    (cut, step) => viewed(step, cut) ?? fail(`${where}: view step ${JSON.stringify(step)} does not fit [${cut}]`),
    parameter.shape,
  );
  if (product(cut) !== product(stored)) fail(`${where}: a view gives [${cut}], and [${stored}] is stored`);
}

/** What is known of tensors, as words that can be compared, without their first axes. */
function facts(specs: TensorSpec[], axes: number): string[] {
  return specs.map((spec) => `${spec.name}[${spec.shape.slice(axes)}]${spec.dtype}`);
}

/** Whether both hold the same, in any order. */
function areSame(a: string[], b: string[]): boolean {
  const [one, other] = [new Set(a), new Set(b)];
  return one.size === other.size && [...one].every((item) => other.has(item));
}

function shape(where: string, shape: number[], dtype: Dtype, leastRank = 1): void {
  const isGood =
    shape.length >= leastRank && shape.every((d) => d >= 1) && byteSize({ shape, dtype }) <= MAX_TENSOR_BYTES;
  if (!isGood) fail(`${where}: bad shape [${shape}]`);
}

function unique(where: string, names: string[]): void {
  const seen = new Set<string>();
  for (const name of names) {
    if (seen.has(name)) fail(`${where}: '${name}' stands there twice`);
    seen.add(name);
  }
}

function fail(problem: string): never {
  throw new DamagedProgramError(`manifest: ${problem}`);
}
