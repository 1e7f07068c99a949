import { areEqual, type Bytes, bytesOf, utf8 } from "../bytes.ts";
import { InputError } from "../errors.ts";
import { product } from "../manifest/manifest.ts";
import type { ClassHead, ModelTensor } from "../manifest/manifest-records.ts";
import { places } from "../manifest/view.ts";
import type { Program } from "../program/program.ts";
import type { Values } from "../program/samples.ts";
import { keptOf, type StoredTensor } from "../program/state-spec.ts";
import { ClassMeans, fartherOf, meanOf, meansIn, sharpnessOf } from "./class-means.ts";
import { classesOf, FREE, NAME_BYTES, written } from "./classes.ts";
import { Discriminant, type Shrinkage } from "./discriminant.ts";

/**
 * So many times the lowest of the others it is at least: then no row that is up to seven times as long as the longest class
 * mean names a free class, whatever its direction.
 */
const BELOW = 16;

/** A slot of the optimizer, of a kind of them, and the parameter that it is of. */
interface Slot {
  readonly kind: string;
  readonly of: Placed;
  readonly place: Placed;
}

/**
 * The classes of a program's last layer in one state: set to means of samples without a gradient, added, renamed and
 * forgotten; the twin of the host's `converter/runtime/session/known_classes.py`.
 */
export class KnownClasses {
  private readonly head: ClassHead;
  private readonly tensors: Map<string, StoredTensor>;
  private readonly names: (string | null)[];
  private readonly kernel: Placed;
  private readonly bias: Placed;
  private readonly slots: Slot[];
  /** Labels whose weights are others than before. */
  private readonly putLabels = new Set<number>();
  /** Kinds of slots that were built equal to the weights, as far as they were asked for. */
  private readonly copying = new Map<string, boolean>();

  /** Throws InputError for a program whose last layer is set by steps alone. */
  constructor(
    private readonly program: Program,
    private readonly state: readonly StoredTensor[],
  ) {
    const { manifest } = program;
    this.names = [...classesOf(manifest, state)];
    this.head = manifest.fields.head as ClassHead; // where there is none, `classesOf` throws
    this.tensors = new Map(state.map((tensor) => [tensor.name, tensor]));
    const parameter = (name: string, axis: number): Placed => {
      const spec = manifest.fields.parameters.find((each) => each.name === name);
      const piece = spec?.pieces[0];
      if (!spec || !piece) throw new RangeError(`no parameter '${name}'`);
      return new Placed(program, this.tensors, piece.tensor, { name, shape: spec.shape, view: piece.view }, axis);
    };
    this.kernel = parameter(this.head.kernel, this.head.axis);
    this.bias = parameter(this.head.bias, 0);
    const layers = [
      [this.head.kernel, this.kernel],
      [this.head.bias, this.bias],
    ] as const;
    this.slots = layers.flatMap(([owner, of]) =>
      keptOf(owner, manifest.stateTensors).flatMap(({ tensor, slot, model }) => {
        if (!slot || !model || `${model.shape}` !== `${of.shape}`) return [];
        const place = new Placed(program, this.tensors, tensor, model, of.axis);
        return [{ kind: model.name.slice(0, -owner.length), of, place }];
      }),
    );
  }

  /** The state with what was changed. Slots that are of no class, as Adam's count, begin anew where all labels were put. */
  changed(): StoredTensor[] {
    for (const place of [this.kernel, this.bias, ...this.slots.map((slot) => slot.place)]) {
      const before = this.tensors.get(place.tensor);
      if (before) this.tensors.set(place.tensor, { ...before, bytes: place.bytes() });
    }
    if (this.putLabels.size === this.names.length) {
      const ofClasses = new Set([...this.slots.map(({ place }) => place.tensor), this.head.names]);
      for (const spec of this.program.manifest.stateTensors) {
        const before = this.tensors.get(spec.tensor);
        if (!spec.slot || ofClasses.has(spec.tensor) || !before) continue;
        this.tensors.set(spec.tensor, { ...before, bytes: this.program.initial(spec) });
      }
    }
    return this.state.map((tensor) => this.tensors.get(tensor.name) ?? tensor);
  }

  /** Sets the last layer to the means of features by class, or with a shrinkage to their discriminant. */
  setMeans(features: readonly Values[], labels: readonly number[], shrinkage?: Shrinkage): void {
    const rows = this.numbers(features);
    const known = this.known();
    for (const label of labels) {
      if (!known.includes(label)) throw new InputError(`y: labels of known classes, one a row: ${known}, not ${label}`);
    }
    const missing = known.find((label) => !labels.includes(label));
    if (missing !== undefined) {
      throw new InputError(`y: no row is of class ${missing} ('${this.names[missing]}'), which has no mean then`);
    }
    const means = known.map((label) => meanOf(rows.filter((_, row) => labels[row] === label)));
    const places = labels.map((label) => known.indexOf(label));
    const nearest = () => {
      const none = means.map(() => 0);
      return new ClassMeans(means, sharpnessOf(rows, places, means), none);
    };
    const made = shrinkage === undefined ? nearest() : Discriminant.of(rows, places, means, shrinkage);
    this.place([...known.keys()], known, made);
    this.free();
  }

  /** Adds a class of the mean of features, or without them of weights 0; returns its label. */
  add(name: string, features: readonly Values[] | null): number {
    this.checkNew(name);
    const [label, known] = [this.names.indexOf(null), this.known()];
    if (label < 0) {
      throw new InputError(
        `there is room for ${this.names.length} classes, and all are there: forget one, or build with more, ` +
          `classes='${this.head.own}+${this.names.length - this.head.own + 10}', whose last layer takes no state of this one`,
      );
    }
    if (features) this.addOf(label, known, this.numbers(features));
    else {
      const biases = known.map((each) => this.bias.row(each)[0] ?? 0);
      const mean = biases.reduce((sum, each) => sum + each, 0) / Math.max(biases.length, 1);
      this.put(label, new Float32Array(this.kernel.width), mean);
    }
    this.call(label, name);
    this.free();
    return label;
  }

  private addOf(label: number, known: number[], rows: Float64Array[]): void {
    const weights = known.map((each) => this.kernel.row(each));
    const own = known.map((each) => each < this.head.own);
    // A mean of 0 says nothing of the sharpness: then all others do.
    const tells = weights.some((row, i) => own[i] && row.some((number) => number !== 0));
    const biases = known.map((each) => this.bias.row(each)[0] ?? 0);
    const before = meansIn(weights, biases, tells ? own : known.map(() => true));
    if (!before) {
      throw new InputError(
        "the last layer does not hold class means, as after steps or with a shrinkage: what another class' weights were " +
          "to be beside them is not known. Set class means with samples of all classes. Or add the class without samples, " +
          "and train or set all again",
      );
    }
    const means = [...before.means, meanOf(rows)];
    const farther = [...before.farther, tells ? fartherOf(rows) : 0];
    const labels = [...known, label];
    if (known.length === 1) {
      // Of one class alone nothing told how sharply it is to be told from others.
      const ones = rows.map(() => 1);
      this.place([0, 1], labels, new ClassMeans(means, sharpnessOf(rows, ones, means), farther));
    } else this.place([known.length], labels, new ClassMeans(means, before.sharpness, farther));
  }

  /** Gives a class another name. */
  rename(name: string, after: string): void {
    this.checkNamed();
    if (name !== after) this.checkNew(after);
    this.call(this.label(name), after);
  }

  /** Frees the label of a class that was added. */
  forget(name: string): void {
    const label = this.label(name);
    if (label < this.head.own) {
      throw new InputError(`'${name}' is a class of the model's own: it stays, and can be renamed`);
    }
    this.call(label, null);
    this.free();
  }

  private known(): number[] {
    return [...this.names.keys()].filter((label) => this.names[label] !== null);
  }

  private place(changed: number[], labels: number[], made: ClassMeans | Discriminant): void {
    for (const at of changed) this.put(labels[at] ?? 0, made.weights(at), made.bias(at));
  }

  /** Masks the classes that there are not. */
  private free(): void {
    if (this.head.names === null) return;
    const known = this.known();
    const lowest = known.reduce((least, label) => Math.min(least, this.bias.row(label)[0] ?? 0), Infinity);
    const bias = Math.min(FREE, BELOW * (known.length > 0 ? lowest : 0));
    for (const label of this.names.keys()) {
      if (!known.includes(label)) this.put(label, new Float32Array(this.kernel.width), bias);
    }
  }

  /** Replaces weights and bias of a class; the optimizer's slots of it begin anew. */
  private put(label: number, weights: Float32Array, bias: number): void {
    this.putLabels.add(label);
    this.kernel.put(label, weights);
    this.bias.put(label, Float32Array.of(bias));
    for (const { kind, of, place } of this.slots) {
      const copies = this.copying.get(kind) ?? this.copiesWeights(kind);
      this.copying.set(kind, copies);
      place.put(label, copies ? of.row(label) : place.built(label));
    }
  }

  /**
   * Whether slots of a kind were built equal to the weights of their parameters. Of weights that were built as zeros the
   * slot tells nothing, and its like of the layer's other parameter does: where both were zeros, a build refuses such
   * optimizers.
   */
  private copiesWeights(kind: string): boolean {
    const labels = [...this.names.keys()];
    const told = this.slots.filter(
      (slot) => slot.kind === kind && labels.some((it) => slot.of.built(it).some(Boolean)),
    );
    return (
      told.length > 0 &&
      told.every(({ of, place }) => labels.every((it) => areEqual(bytesOf(of.built(it)), bytesOf(place.built(it)))))
    );
  }

  private call(label: number, name: string | null): void {
    this.names[label] = name;
    const before = this.tensors.get(this.head.names ?? "");
    if (before) this.tensors.set(before.name, { ...before, bytes: written(this.names) });
  }

  private checkNamed(): void {
    if (this.head.names === null) {
      throw new InputError(
        `names are not kept in this program's state: build with room, classes='${this.head.own}+10'`,
      );
    }
  }

  private checkNew(name: string): void {
    this.checkNamed();
    if (!name.trim()) throw new InputError(`the name of a class is a text, not '${name}'`);
    if (this.names.includes(name)) throw new InputError(`there is a class '${name}' already`);
    const size = utf8(name).length;
    if (size > NAME_BYTES) {
      throw new InputError(
        `the name of a class takes at most ${NAME_BYTES} bytes in UTF-8, and '${name}' takes ${size}`,
      );
    }
  }

  private label(name: string): number {
    const label = this.names.indexOf(name);
    const known = this.names.filter((each) => each !== null);
    if (label < 0) throw new InputError(`there is no class '${name}': there are ${known.join(", ")}`);
    return label;
  }

  /** What the last layer reads of each row. */
  private numbers(features: readonly Values[]): Float64Array[] {
    if (features.length === 0) throw new InputError("x: there are no rows");
    const { zero_point: zero, scale } = this.head;
    return features.map((row) => Float64Array.from(row, (number) => (number - zero) * scale));
  }
}

/** A tensor of the state whose rows of classes lie along an axis of the model's tensor. */
class Placed {
  readonly shape: number[];
  /** Numbers of a class. */
  readonly width: number;
  /** Where each number of a class is stored, by label. */
  private readonly stored: number[][];
  /** The numbers as they were built, and as they are. */
  private readonly initial: Float32Array;
  private readonly now: Float32Array;

  constructor(
    program: Program,
    tensors: ReadonlyMap<string, StoredTensor>,
    readonly tensor: string,
    model: ModelTensor,
    readonly axis: number,
  ) {
    this.shape = model.shape;
    const classes = model.shape[axis] ?? 1;
    const inside = product(model.shape.slice(axis + 1));
    this.width = product(model.shape) / classes;
    this.stored = Array.from({ length: classes }, () => []);
    for (const [at, place] of places(model).entries()) {
      const row = this.stored[Math.floor(place / inside) % classes];
      if (row) row[Math.floor(place / (inside * classes)) * inside + (place % inside)] = at;
    }
    const spec = program.manifest.stateTensors.find((each) => each.tensor === tensor);
    const numbersIn = (bytes?: Bytes) => new Float32Array((bytes ?? new Uint8Array()).slice().buffer);
    this.initial = numbersIn(spec && program.initial(spec));
    this.now = numbersIn(tensors.get(tensor)?.bytes);
  }

  /** The numbers of a class as they were built. */
  built(label: number): Float32Array {
    return this.rowIn(this.initial, label);
  }

  row(label: number): Float32Array {
    return this.rowIn(this.now, label);
  }

  put(label: number, row: Float32Array): void {
    for (const [i, at] of (this.stored[label] ?? []).entries()) this.now[at] = row[i] ?? 0;
  }

  /** The whole tensor as it is. */
  bytes(): Bytes {
    return bytesOf(this.now.slice());
  }

  private rowIn(numbers: Float32Array, label: number): Float32Array {
    return Float32Array.from(this.stored[label] ?? [], (at) => numbers[at] ?? 0);
  }
}
