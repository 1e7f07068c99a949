import { sha256, toHex, utf8 } from "../bytes.ts";
import { InputError } from "../errors.ts";
import { byLength } from "../manifest/lengths.ts";
import { labelOf, type Manifest, ofRole, rowSize } from "../manifest/manifest.ts";
import type { TargetLabels, TensorSpec } from "../manifest/manifest-records.ts";
import { onlyTarget, type Row, type Sample, weightOf } from "../program/samples.ts";
import {
  type Contents,
  classesOf,
  emptyPart,
  type Keeps,
  type Part,
  type RowsOwner,
  type RowTensor,
} from "./contents.ts";

const WEIGHT = "weight";

/** What a row of a program is: its arrays, its class, and whose it is. */
export class RowKind {
  private readonly inputs: TensorSpec[];
  private readonly targets: TensorSpec[];
  /** What the loss takes for the only target, where a row of it is of one class. */
  private readonly labels: TargetLabels | null;
  private readonly classes: number;

  private constructor(
    private readonly manifest: Manifest,
    readonly owner: RowsOwner,
  ) {
    this.inputs = ofRole(manifest.step.inputs, "input");
    this.targets = ofRole(manifest.step.inputs, "target");
    this.labels = onlyLabels(manifest, this.targets);
    this.classes = this.labels ? (this.labels.count ?? (this.labels.only.length || 2)) : 1;
  }

  /** Throws InputError for a program that does not say what it computes. */
  static async of(manifest: Manifest): Promise<RowKind> {
    const { identity, name } = manifest;
    if (!identity) {
      throw new InputError(
        `${name} was built by an older Pocketune and does not say what it computes, so rows cannot be kept for it: build ` +
          "it again",
      );
    }
    const weights = identity.frozen.map((weight) => `${weight.name} ${weight.digest}\n`).join("");
    const { forward, int8, version } = identity;
    return new RowKind(manifest, { forward, frozen: toHex(await sha256(utf8(weights))), int8, version });
  }

  /** The class of a row; null of one that counts nothing, or whose label the loss leaves out. */
  labelOf(sample: Sample): number | null {
    if (weightOf(sample) <= 0) return null;
    const target = onlyTarget(sample);
    if (!this.labels || !target) return 0;
    const { count, only, ignored } = this.labels;
    const first = target[0] ?? 0;
    if (target instanceof Float32Array) {
      if (only.length > 0) return only.findIndex((number) => Math.fround(number) === first);
      return count === null ? Number(first >= 0.5) : target.indexOf(Math.max(...target));
    }
    return first >= 0 && first < (count ?? 0) && first !== ignored ? first : null;
  }

  /** The arrays of a row by the names of the step. */
  arrays(sample: Sample): Row {
    const targets = this.targets.map((spec) => [spec.name, sample.targets[labelOf(spec)]]);
    const weight = Float32Array.of(weightOf(sample));
    return { ...sample.inputs, ...Object.fromEntries(targets), [WEIGHT]: weight };
  }

  sample(arrays: Row): Sample {
    const named = (specs: TensorSpec[]) => Object.fromEntries(specs.map((spec) => [labelOf(spec), arrays[spec.name]]));
    return {
      inputs: named(this.inputs) as Row,
      targets: named(this.targets) as Row,
      weight: arrays[WEIGHT]?.[0] ?? 1,
    };
  }

  /** Parts without rows, to be replayed and held out. Throws InputError where the program cannot have them. */
  parts(keeps: Keeps, judges: boolean): [Part, Part] {
    const { manifest, classes } = this;
    if (byLength(manifest, manifest.stepName).length > 0) {
      throw new InputError(
        `${manifest.name} takes rows of several lengths, and rows of a memory are of one size: build it with one`,
      );
    }
    if (judges && !manifest.find("evaluate")) {
      throw new InputError(
        `${manifest.name} has no signature 'evaluate', which held-out rows are for: build it with one, or pass heldOut: 0`,
      );
    }
    if (keeps === "features" && !manifest.find("features")) {
      throw new InputError(`${manifest.name} has no signature 'features': build it with one, or keep inputs`);
    }
    return [emptyPart(this.rowOf(keeps), 0, classes), emptyPart(this.rowOf("inputs"), 0, classes)];
  }

  /** What tells a memory's program from this one, in words; null where rows of the one are rows of the other. */
  difference(there: Contents): string | null {
    const keepsFeatures = there.keeps === "features";
    const { owner, classes } = this;
    if (there.owner.version !== owner.version) {
      return "it was built by another version of Pocketune, and whether both compute the same cannot be told";
    }
    if (there.owner.forward !== owner.forward)
      return "the forward computation differs, or the head of a file of several";
    if (keepsFeatures && there.owner.frozen !== owner.frozen) {
      return "the frozen weights differ, and features are kept";
    }
    if (keepsFeatures && there.owner.int8 !== owner.int8) {
      return "other frozen layers are rounded there, and features are kept";
    }
    if (keepsFeatures && !this.manifest.find("features")) {
      return "features are kept, and this program has no signature 'features'";
    }
    for (const [theirs, ours] of [
      [there.replay.tensors, this.rowOf(there.keeps)],
      [there.aside.tensors, this.rowOf("inputs")],
    ] as const) {
      if (listed(theirs) !== listed(ours))
        return `its rows are ${listed(theirs)}, and those of this program ${listed(ours)}`;
    }
    if (classesOf(there) === classes) return null;
    return `it balances ${classesOf(there)} classes, and this program has ${classes}`;
  }

  private rowOf(keeps: Keeps): RowTensor[] {
    const { stepName } = this.manifest;
    const { inputs } = this.manifest.signature(keeps === "features" ? `${stepName}_features` : stepName);
    const taken = [...ofRole(inputs, "input"), ...ofRole(inputs, "target"), ...ofRole(inputs, "weight")];
    return taken.map(({ name, dtype, shape }) => ({ name, dtype, shape: shape.slice(1) }));
  }
}

function onlyLabels(manifest: Manifest, targets: TensorSpec[]): TargetLabels | null {
  const [target] = targets;
  const labels = manifest.onlyLabels;
  if (!target || !labels) return null;
  const size = rowSize(target);
  if (labels.count !== null) return size === (target.dtype === "float32" ? labels.count : 1) ? labels : null;
  return size === 1 && (labels.only.length > 0 || (labels.least === 0 && labels.most === 1)) ? labels : null;
}

function listed(tensors: readonly RowTensor[]): string {
  return tensors.map(({ name, dtype, shape }) => `${name} ${dtype}[${shape.join(", ")}]`).join(", ");
}
