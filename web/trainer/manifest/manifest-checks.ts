import { DamagedProgramError, NewerProgramError } from "../errors.ts";
import { atLength, ofTokens, tokensOf } from "./lengths.ts";
import { FEATURES, Manifest, ON_FEATURES, ofRole, product, rowsOf, rowsToInfer, TARGET } from "./manifest.ts";
import { checkFeatures, fact, facts } from "./manifest-features.ts";
import { checkHead } from "./manifest-head.ts";
import { checkIntegers } from "./manifest-integers.ts";
import { FORMAT, MAX_BYTES } from "./manifest-limits.ts";
import {
  type Certificate,
  manifest as manifestFields,
  type ParameterSpec,
  type Role,
  type Signature,
  type StateTensor,
  type TargetLabels,
  type TensorSpec,
} from "./manifest-records.ts";
import { FISHER, GRADIENT, ROLES, type RoleRule, SIGNATURES } from "./manifest-rules.ts";
import { problemOfRedrawn, redrawnOf } from "./redrawn.ts";
import { FormatError, parse } from "./strict-json.ts";
import { viewed } from "./view.ts";

/**
 * A checked manifest from the metadata entry. Throws DamagedProgramError: a field is missing, unknown or ill-typed, or
 * two of them contradict each other; NewerProgramError: it is of a format that is not known here.
 */
export function readManifest(bytes: Uint8Array): Manifest {
  if (bytes.length > MAX_BYTES) fail(`${bytes.length} bytes, more than ${MAX_BYTES}`);
  let manifest: Manifest;
  try {
    const parsed = parse(bytes);
    const { format } = (parsed ?? {}) as Record<string, unknown>;
    if (typeof format === "string" && format !== FORMAT) {
      throw new NewerProgramError(`manifest: format '${format}' is not known here, only '${FORMAT}': update the page`);
    }
    manifest = new Manifest(manifestFields(parsed, "manifest"));
  } catch (error) {
    if (error instanceof FormatError)
      throw new DamagedProgramError(error.message.replace(/^(manifest)?[.:]? ?/, "manifest: "));
    throw error;
  }
  new ManifestChecks(manifest).check();
  return manifest;
}

/** The rules between the fields. */
class ManifestChecks {
  private readonly state: Map<string, StateTensor>;
  private readonly stepOnFeatures: string;
  private readonly signatures: Map<string, Signature>;
  /** The signatures that a program of several lengths has for each of them. */
  private readonly byRows: string[];

  constructor(private readonly manifest: Manifest) {
    this.state = new Map(manifest.stateTensors.map((tensor) => [tensor.tensor, tensor]));
    this.stepOnFeatures = manifest.stepOnFeatures;
    this.signatures = manifest.fields.signatures;
    this.byRows = [manifest.stepName, "evaluate", "infer"].filter((name) => this.signatures.has(name));
  }

  check(): void {
    const { batch, microBatch, fields } = this.manifest;
    if (microBatch > batch || batch % microBatch !== 0) {
      fail(`micro_batch: ${microBatch} is no part of a batch of ${batch}`);
    }
    for (const [i, { model, shape }] of fields.state_tensors.entries()) {
      if (model) checkView(`state_tensors[${i}].model`, model.view, model.shape, shape);
    }
    this.names();
    for (const [name, signature] of this.signatures) this.signature(name, signature);
    for (const [name, onFeatures] of this.manifest.behindFeatures) {
      this.kind(`signatures.${onFeatures}`, name, this.manifest.signature(name));
    }
    this.infers();
    this.lengths();
    this.targets();
    checkFeatures(this.manifest, fail);
    this.allState();
    this.rate();
    this.split();
    this.gradients();
    this.choices();
    checkHead(fields, this.state, fail);
    for (const [i, parameter] of fields.parameters.entries()) this.parameter(`parameters[${i}]`, parameter);
    checkIntegers(fields, this.state, fail);
    for (const [i, certificate] of fields.certificates.entries()) checkCertificate(`certificates[${i}]`, certificate);
  }

  /** There are the signatures that a step needs, and no other than those of the schema. */
  private names(): void {
    const { manifest, signatures } = this;
    const moves = manifest.fields.state === "variables" ? ["save", "restore", "initialize"] : [];
    const onFeatures = signatures.has(FEATURES) ? [this.stepOnFeatures] : [];
    const wanted = [manifest.stepName, manifest.updatingName, ...moves, ...onFeatures];
    for (const name of wanted) if (!manifest.find(name)) fail(`signatures: '${name}' is missing`);
    const judging = signatures.has(FEATURES) ? ["evaluate", "infer"].map((name) => name + ON_FEATURES) : [];
    const known = [...wanted, ...judging, "evaluate", "infer", FEATURES, "fisher", "prefill", "decode"];
    for (const name of signatures.keys()) {
      const isInfer = rowsToInfer(name) !== undefined && manifest.find("infer") !== undefined;
      const [base, tokens] = atLength(name);
      const isShorter = tokens !== null && this.byRows.includes(base);
      if (!known.includes(name) && !isInfer && !isShorter) fail(`signatures: '${name}' is none of such a program`);
    }
  }

  /** What the schema says of a signature, and of the roles of its tensors. */
  private signature(name: string, signature: Signature): void {
    const where = `signatures.${name}`;
    for (const spec of signature.inputs) this.tensor(`${where}.${spec.name}`, spec, "in");
    for (const spec of signature.outputs) this.tensor(`${where}.${spec.name}`, spec, "out");
    this.kind(where, name, signature);
  }

  /** What the schema says of a kind of signature. */
  private kind(where: string, name: string, signature: Signature): void {
    const [base, tokens] = atLength(name);
    const {
      one = [],
      some = [],
      rows,
      same = [],
    } = SIGNATURES.get(rowsToInfer(name) === undefined ? base : "infer_n") ?? {};
    const roles = [...signature.inputs, ...signature.outputs].map((spec) => spec.role);
    for (const role of one) {
      const count = roles.filter((each) => each === role).length;
      if (count !== 1) fail(`${where}: ${count} tensors of role '${role}', and it takes one`);
    }
    for (const role of some) if (!roles.includes(role)) fail(`${where}: nothing of role '${role}'`);
    for (const spec of rows === "call" ? [...signature.inputs, ...signature.outputs] : []) {
      if (ROLES[spec.role].row && spec.shape[0] !== this.manifest.microBatch) {
        fail(`${where}.${spec.name}: first axis ${spec.shape[0]}, and a call takes ${this.manifest.microBatch}`);
      }
    }
    if (rows === "own" && new Set(ofRole(signature.inputs, "input").map((spec) => spec.shape[0])).size !== 1) {
      fail(`${where}: the first axes of its inputs differ`);
    }
    for (const role of tokens === null ? same : []) this.same(where, signature, role);
  }

  private same(where: string, signature: Signature, role: Role): void {
    const { step, stepName } = this.manifest;
    if (!areSame(facts(ofRole(signature.inputs, role), 1), facts(ofRole(step.inputs, role), 1))) {
      fail(`${where}: what it takes of role '${role}' is not what ${stepName} takes`);
    }
  }

  /** What its role says of a tensor. */
  private tensor(where: string, spec: TensorSpec, side: "in" | "out"): void {
    const { role, name, dtype, shape } = spec;
    const rule = ROLES[role];
    const prefix = rule.prefix ?? "";
    if (!rule[side]) fail(`${where}: role '${role}' among the ${side}puts`);
    const isTyped = dtype === (rule.dtype ?? dtype) && name.startsWith(prefix);
    if (rule.named && (name !== role || !isTyped)) {
      fail(`${where}: role '${role}' belongs to a ${rule.dtype} of that name`);
    }
    const isSized = !rule.size || (shape.length === 1 && (rule.size === "rows" || shape[0] === 1));
    if (!isTyped || !isSized) fail(`${where}: a ${role} is ${wordsOf(rule)}, not ${dtype}[${shape}]`);
    if (!rule.state) return;
    const stored = this.state.get(name.slice(prefix.length));
    // The bits of int8 are passed as uint8.
    const passed = stored?.dtype === "int8" ? "uint8" : stored?.dtype;
    if (stored?.shape.join() !== shape.join() || passed !== dtype) {
      fail(`${where}: does not agree with state_tensors`);
    }
  }

  /** `infer_<n>` is `infer` for n rows. */
  private infers(): void {
    for (const [name, signature] of this.signatures) {
      const rows = rowsToInfer(name);
      if (rows === undefined) continue;
      if (rowsOf(signature) !== rows) fail(`signatures.${name}: it takes another number of rows`);
      const [given, expected] = [signature, this.manifest.infer].map((it) =>
        facts(ofRole(it.outputs, "output"), 1).join("\n"),
      );
      if (given !== expected) fail(`signatures.${name}: what it gives is not what infer gives`);
    }
  }

  /** `train_length_<n>` is `train` for rows of n tokens, and all of them are there for each n. */
  private lengths(): void {
    for (const [name, signature] of this.signatures) {
      const [base, tokens] = atLength(name);
      if (tokens === null) continue;
      for (const other of this.byRows) {
        if (!this.signatures.has(`${other}_length_${tokens}`))
          fail(`signatures: '${other}_length_${tokens}' is missing`);
      }
      const longest = this.manifest.signature(base);
      const rows = [...ofRole(signature.inputs, "input"), ...ofRole(signature.inputs, "target")];
      const isShorter =
        rows.every(({ shape }) => shape.length === 2 && shape[1] === tokens) && tokensOf(longest) > tokens;
      const own = [...signature.inputs, ...signature.outputs];
      if (!isShorter || JSON.stringify(own) !== JSON.stringify(ofTokens(longest, tokens))) {
        fail(`signatures.${name}: it is not ${base} for rows of ${tokens} tokens`);
      }
    }
  }

  /** One is `y`, several are `y/...`, and some losses take none; losses and labels are those of the targets. */
  private targets(): void {
    const { manifest } = this;
    const targets = ofRole(manifest.step.inputs, "target");
    const names = targets.map((spec) => spec.name);
    const isOne = names.length === 1 && names[0] === TARGET;
    if (!isOne && !names.every((name) => name.startsWith(`${TARGET}/`))) {
      fail(`signatures.${manifest.stepName}: its targets are ${names.join(", ")}, and neither y nor y/...`);
    }
    for (const [name, labels] of manifest.targetLabels) {
      const target =
        targets.find((spec) => spec.name === name) ?? fail(`target_labels.${name}: no target of that name`);
      checkLabels(`target_labels.${name}`, labels, target);
    }
    if (typeof manifest.fields.loss === "string") return;
    const losses = [...manifest.losses.keys()];
    const owners = names.map((name) => losses.find((loss) => `${name}/`.startsWith(`${loss}/`)) ?? "");
    if (!areSame(owners, losses)) fail(`loss: those of ${losses.join(", ")}, and the targets are ${names.join(", ")}`);
  }

  /** What moves the state moves all of it. */
  private allState(): void {
    const { manifest } = this;
    const moves: Record<string, [string, TensorSpec[]][]> = {
      variables: [
        ["save", this.signatures.get("save")?.outputs ?? []],
        ["restore", this.signatures.get("restore")?.inputs ?? []],
      ],
      stateless: [[manifest.updatingName, manifest.updating.inputs]],
    };
    for (const [name, specs] of moves[manifest.fields.state] ?? []) {
      const names = ofRole(specs, "state").map((spec) => spec.name);
      if (!areSame(names, [...this.state.keys()])) {
        fail(`signatures.${name}: its state is not the tensors of state_tensors`);
      }
    }
  }

  /** One learning rate: a number, or one that runs in the program and counts by the state. */
  private rate(): void {
    const { learningRate, runningRate } = this.manifest;
    if ((learningRate === null) === (runningRate === null)) {
      fail(
        "learning_rate: it is a number, or running_rate says how it runs in the program, one of both; programs of an " +
          "older Pocketune say neither: build it again",
      );
    }
    const counter = runningRate?.counter ?? null;
    if (counter === null) return;
    const tensor = this.state.get(counter);
    if (tensor?.dtype !== "float32" || tensor.shape.join() !== "1") {
      fail(`running_rate.counter: '${counter}' is no number of the state`);
    }
  }

  /** What the two halves of a split step change of the state; the scale of what they pass. */
  private split(): void {
    const { manifest } = this;
    const { state, loss_scale: scale } = manifest.fields;
    if (2 ** Math.round(Math.log2(scale)) !== scale || (scale !== 1 && state !== "split")) {
      fail(`loss_scale: ${scale} is no power of two, or not for the state '${state}'`);
    }
    if (state !== "split") return;
    const [moved, updated] = [this.movedBy(manifest.stepName), this.movedBy(manifest.updatingName)];
    const left = this.trained().find((name) => !updated.includes(name));
    if (left !== undefined) fail(`signatures.${manifest.updatingName}: it does not update '${left}'`);
    const both = moved.find((name) => updated.includes(name));
    if (both !== undefined) {
      fail(`signatures.${manifest.stepName}: it changes '${both}', and so does ${manifest.updatingName}`);
    }
  }

  /** The state tensors that a signature gives. */
  private movedBy(name: string): string[] {
    return ofRole(this.manifest.signature(name).outputs, "state").map((spec) => spec.name);
  }

  /** The state tensors that have a gradient, or as moving averages a batch's statistics in the place of one. */
  private trained(): string[] {
    const { manifest } = this;
    // The number of the call, which the forward pass of a split step changes.
    const forward = manifest.fields.state === "split" ? this.movedBy(manifest.stepName) : [];
    const bases = redrawnOf(manifest.fields).flatMap(([weight]) => weight.pieces.map((piece) => piece.tensor));
    const left = [...manifest.choices.map((choice) => choice.indices), ...bases, ...forward];
    return manifest.stateTensors.filter((it) => !it.slot && !left.includes(it.tensor)).map((it) => it.tensor);
  }

  /** Those of a split step go from one half to the other; a stateless one is handed its accumulators each time. */
  private gradients(): void {
    const { manifest } = this;
    const { state } = manifest.fields;
    const trained = this.trained().map((name) => GRADIENT + name);
    const onRows: string[] = [manifest.stepName, this.stepOnFeatures];
    const isPassed = manifest.accumulates && state === "stateless";
    const taking = state === "split" ? ["apply"] : isPassed ? [...onRows, "apply"] : [];
    const giving = state === "split" || isPassed ? onRows : [];
    for (const [name, signature] of this.signatures) {
      const check = (side: string, specs: TensorSpec[], isHere: boolean) => {
        const names = ofRole(specs, "gradient").map((spec) => spec.name);
        if (!areSame(names, isHere ? trained : [])) {
          fail(`signatures.${name}: the gradients among its ${side} are not those of what trains`);
        }
      };
      check("inputs", signature.inputs, taking.includes(atLength(name)[0]));
      check("outputs", signature.outputs, giving.includes(atLength(name)[0]));
    }
  }

  /** Each has a list of channels and a change of its own, and `fisher` weighs all of them. */
  private choices(): void {
    const { choices, fields } = this.manifest;
    for (const [i, choice] of choices.entries()) {
      const { indices, channels, change } = choice;
      const where = `choices[${i}]`;
      const stored = this.state.get(indices);
      if (stored?.dtype !== "int32" || stored.shape.length !== 1) {
        fail(`${where}: '${indices}' is no list of channels in state_tensors`);
      }
      if (product(stored.shape) > channels) fail(`${where}: ${stored.shape} of ${channels} channels`);
      if (!fields.parameters.some((parameter) => parameter.name === change)) {
        fail(`${where}: '${change}' is not in parameters`);
      }
      const problem = problemOfRedrawn(fields.parameters, this.state, choice, product(stored.shape));
      if (problem) fail(where + problem);
    }
    const fisher = this.signatures.get("fisher");
    const weighed = choices.map((it) => fact(FISHER + it.weight, [it.channels], "float32"));
    if (fisher && !areSame(facts(ofRole(fisher.outputs, "fisher")), weighed)) {
      fail("signatures.fisher: what it gives is not one number for each channel of the choices");
    }
  }

  private parameter(where: string, parameter: ParameterSpec): void {
    if (parameter.dtype === "int8") fail(`${where}.dtype: a weight in int8 stands for float32 numbers`);
    for (const piece of parameter.pieces) {
      const stored = this.state.get(piece.tensor) ?? fail(`${where}: '${piece.tensor}' is not in state_tensors`);
      checkView(where, piece.view, parameter.shape, stored.shape);
    }
    const { frozen } = parameter;
    if (frozen) checkView(`${where}.frozen`, frozen.view, parameter.shape, frozen.shape);
  }
}

/** What a tensor of a role is. */
function wordsOf({ size, dtype, prefix }: RoleRule): string {
  const many = size === "1" ? "one " : size === "rows" ? "one a row, of " : "of ";
  return `${many}${dtype ?? "any type"}${prefix ? ` and called ${prefix}...` : ""}`;
}

/** A target of its type can hold such labels or numbers. */
function checkLabels(where: string, { count, masked, ignored, least, most, only }: TargetLabels, target: TensorSpec) {
  const [{ dtype }, classes] = [target, target.shape.at(-1)];
  if (dtype === "int32" && (count === null || least !== null || most !== null || only.length > 0)) {
    fail(`${where}: an int32 target holds labels from 0 to a count, and no other numbers`);
  }
  if (dtype === "float32" && (masked || ignored !== null)) {
    fail(`${where}: labels are left out, and a float32 target holds none`);
  }
  if (dtype === "float32" && count !== null && count !== classes) {
    fail(`${where}: ${count} classes, and the target has ${classes} along its last axis`);
  }
  if (dtype === "bool" || (least !== null && most !== null && least > most)) {
    fail(`${where}: there are no such numbers of ${dtype}`);
  }
}

function checkCertificate(where: string, { ok, whole, failures, update_error }: Certificate): void {
  if (ok && (!whole || failures.length > 0 || update_error === null)) {
    fail(`${where}: it says that all is well, and that something is not`);
  }
}

function checkView(where: string, steps: unknown[], shape: number[], stored: number[]): void {
  const given = steps.reduce<number[]>(
    (now, step) => viewed(step, now) ?? fail(`${where}: view step ${JSON.stringify(step)} does not fit [${now}]`),
    shape,
  );
  if (product(given) !== product(stored)) fail(`${where}: a view gives [${given}], and what is stored is [${stored}]`);
}

/** Whether both hold the same, in any order. */
function areSame(a: string[], b: string[]): boolean {
  const [one, other] = [new Set(a), new Set(b)];
  return one.size === other.size && [...one].every((item) => other.has(item));
}

function fail(problem: string): never {
  throw new DamagedProgramError(`manifest: ${problem}`);
}
