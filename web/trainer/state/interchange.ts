import type { Bytes } from "../bytes.ts";
import { byteSize, product } from "../manifest/manifest.ts";
import {
  ELEMENT_BYTES,
  type FrozenWeight,
  type LabelledOutput,
  type StateTensor,
} from "../manifest/manifest-records.ts";
import { places } from "../manifest/view.ts";
import { scalesOf } from "../program/integers.ts";
import type { Program } from "../program/program.ts";
import { areChannels, keptOf, nameOf, type StateSpec, type StoredTensor } from "../program/state-spec.ts";
import { FREE } from "./classes.ts";
import type { State } from "./state-file.ts";

/** What is taken over of a state of another program: the tensors that match by name and shape. The others are as built. */
export type Adopt = "matching";

/** A state beside a program. */
export interface Compared {
  /** Those that match, as the program stores them, in its order. */
  readonly tensors: StoredTensor[];
  /** Their names. */
  readonly adopted: string[];
  /** The names of those of the program that match none. */
  readonly left: string[];
  /** Between the state's program and this one, in words; none where the state goes on there. */
  readonly differences: string[];
  /** Whether all was compared. */
  readonly isProven: boolean;
  /** Whether more than slots of the optimizer match. */
  readonly hasWeights: boolean;
}

/** What is said of a state that nothing speaks against, and that does not say all. */
export const UNPROVEN =
  "it was saved by, or for a program of, an older or another version of Pocketune: its tensors fit this program, and " +
  "whether the frozen weights and the forward computation are the same cannot be told";

/** The tensor that says what classes are called, which only programs with room for classes have. */
const CLASS_NAMES = "classes/names";

/** So many differences of a kind are told; the number of the others is. */
const MOST = 3;

/** Rows and columns of a matrix change places. */
const TURNED = ["transpose", [1, 0]];

/** What a program takes for a state. */
export function specOf(program: Program): StateSpec {
  const { graphHash, stateTensors, identity, choices } = program.manifest;
  const built = (tensor: StateTensor) => program.initial(tensor);
  const { head, labels: names, labelled } = program.manifest.fields;
  const scales = scalesOf(program.manifest);
  const outputs = Array.from({ length: 1 + Math.max(-1, ...labelled.map(({ place }) => place)) }, (_, at) => at);
  const labels = outputs.map((at) => (labelled.some(({ place }) => place === at) ? (names ?? []) : []));
  return { program: graphHash, tensors: stateTensors, identity, labels, choices, built, scales, head, labelled };
}

/** Whether it is said of a tensor of a state how it is laid out. */
export function saysLayouts(spec: StateSpec): boolean {
  return spec.tensors.some((tensor) => tensor.model);
}

/** What a program makes of a state (docs/state-file.md, "Whose state it is"). */
export function compare(state: State, here: StateSpec): Compared {
  const there = withLayouts(state, here);
  const [a, b] = [there.identity, here.identity];
  const isProven = there.program === here.program || (a !== null && b !== null && a.version === b.version);
  const said = differences(there, here);
  const tensors = carried(state.tensors, there, here, said.length > 0);
  const taken = new Set(tensors.map((tensor) => tensor.name));
  const isTaken = (tensor: StateTensor) => taken.has(tensor.tensor);
  return {
    tensors,
    adopted: here.tensors.filter(isTaken).map(nameOf),
    left: here.tensors.filter((tensor) => !isTaken(tensor)).map(nameOf),
    differences: said,
    isProven,
    hasWeights: here.tensors.some((tensor) => !tensor.slot && isTaken(tensor)),
  };
}

/** What makes the state of one program meaningless in another, in words; nothing where it goes on there. */
export function differences(there: StateSpec, here: StateSpec): string[] {
  if (there.program === here.program) return [];
  return [...ofPrograms(there, here), ...relabelled(there, here).map(({ difference }) => difference)];
}

/** What differs between two programs, whatever their classes are called. */
function ofPrograms(there: StateSpec, here: StateSpec): string[] {
  const found = trained(there, here);
  const [a, b] = [there.identity, here.identity];
  if (!a || !b) return found.length > 0 ? found : slots(there, here);
  const sameVersion = a.version === b.version;
  if (sameVersion && a.update !== b.update && a.optimizer !== b.optimizer) {
    found.unshift(`the optimizer is ${a.optimizer} there, ${b.optimizer} here`);
  }
  if (found.length === 0) found.push(...slots(there, here));
  if (sameVersion && a.update !== b.update && found.length === 0) found.push("the optimizer computes another update");
  found.push(...frozen(there, here, a.frozen, b.frozen));
  if (sameVersion && a.forward !== b.forward && found.length === 0) found.push("the forward computation differs");
  if (a.int8 && b.int8 && a.int8 !== b.int8) found.push("other frozen layers are rounded there, or in other ranges");
  else if (a.int8 !== b.int8) {
    const [theirs, ours] = [a, b].map((identity) => (identity.int8 ? "rounded" : "float32"));
    found.push(`the frozen layers are ${theirs} there, ${ours} here`);
  }
  return found;
}

/** The outputs that have labels in both programs, and others there, with the first class that differs in words. */
function relabelled(there: StateSpec, here: StateSpec): { output: LabelledOutput; difference: string }[] {
  return (here.labelled ?? []).flatMap((output) => {
    const [theirs = [], ours = []] = [there.labels[output.place], here.labels[output.place]];
    const at = Array.from({ length: Math.max(theirs.length, ours.length) }, (_, i) => i).find(
      (i) => theirs[i] !== ours[i],
    );
    if (theirs.length === 0 || at === undefined) return [];
    const [a, b] = [theirs, ours].map((labels) => (labels[at] === undefined ? "missing" : `'${labels[at]}'`));
    const said = `class ${at} of ${output.output} is ${a} there, ${b} here`;
    return [{ output, difference: `${said}: build with the labels of the state, in its order` }];
  });
}

/** The labelled outputs whose classes are others there, or named by the state itself. */
function ofOtherClasses(there: StateSpec, here: StateSpec): LabelledOutput[] {
  if (there.tensors.some((tensor) => nameOf(tensor) === CLASS_NAMES)) return here.labelled ?? [];
  return relabelled(there, here).map(({ output }) => output);
}

/** What differs in what trains. */
function trained(there: StateSpec, here: StateSpec): string[] {
  const [a, b] = [byName(there, false), byName(here, false)];
  const [stillA, stillB] = [frozenNames(there), frozenNames(here)];
  const isNew = (name: string) => `${name} ${stillA.has(name) ? "is frozen" : "is not"} there and trains here`;
  const isGone = (name: string) => `${name} trains there and ${stillB.has(name) ? "is frozen" : "is not"} here`;
  return [...few(inBoth(a, b)), ...few(without(b, a).map(isNew)), ...few(without(a, b).map(isGone))];
}

/** What differs in what the optimizer keeps. */
function slots(there: StateSpec, here: StateSpec): string[] {
  const [a, b] = [byName(there, true), byName(here, true)];
  const added = without(b, a).map((name) => `the optimizer keeps ${name} here and not there`);
  const gone = without(a, b).map((name) => `the optimizer keeps ${name} there and not here`);
  return [...few(inBoth(a, b)), ...few(added), ...few(gone)];
}

/** What differs in what does not train. */
function frozen(there: StateSpec, here: StateSpec, theirs: FrozenWeight[], ours: FrozenWeight[]): string[] {
  // Their names do not matter.
  if (theirs.map((weight) => weight.digest).join() === ours.map((weight) => weight.digest).join()) return [];
  const [a, b] = [theirs, ours].map((weights) => new Map(weights.map((weight) => [weight.name, weight]))) as [
    Map<string, FrozenWeight>,
    Map<string, FrozenWeight>,
  ];
  const trains = new Set([...there.tensors, ...here.tensors].map(nameOf));
  const both = [...b.values()].flatMap((weight) => {
    const other = a.get(weight.name);
    return other ? [[other, weight] as const] : [];
  });
  const isSame = (x: FrozenWeight, y: FrozenWeight) => x.shape.join() === y.shape.join();
  const changed = both.filter(([x, y]) => isSame(x, y) && x.digest !== y.digest).map(([x]) => x.name);
  const reshaped = both.filter(([x, y]) => !isSame(x, y) && !trains.has(x.name));
  const untrained = (name: string) => !trains.has(name);
  return [
    ...(changed.length > 0 ? [`the frozen weights differ: ${listed(changed)}`] : []),
    ...few(reshaped.map(([x, y]) => `${x.name} is ${size(x.shape)} there, ${size(y.shape)} here`)),
    ...few(
      without(b, a)
        .filter(untrained)
        .map((name) => `${name} is here and not there`),
    ),
    ...few(
      without(a, b)
        .filter(untrained)
        .map((name) => `${name} is there and not here`),
    ),
  ];
}

/** What differs between two tensors of one name; null where one is the other, be it stored in another layout. */
function difference(there: StateTensor, here: StateTensor): string | null {
  const name = nameOf(here);
  const isKnown = Boolean(there.model && here.model);
  const [a, b] = [there, here].map((tensor) => (isKnown ? tensor.model?.shape : tensor.shape) ?? []) as [
    number[],
    number[],
  ];
  if (a.join() !== b.join()) return `${name} is ${size(a)} there, ${size(b)} here`;
  if (there.dtype !== here.dtype) return `${name} is ${there.dtype} there, ${here.dtype} here`;
  if (isKnown && !coverSame(there, here)) return `another part of ${name} trains there`;
  if (!isKnown && isSquare(here)) return `which way round ${name} lies there cannot be told`;
  return null;
}

/** Whether two tensors hold the same elements of the model's. */
function coverSame(there: StateTensor, here: StateTensor): boolean {
  if (product(there.shape) !== product(here.shape) || !there.model || !here.model) return false;
  if (isSameView(there.model.view, here.model.view)) return true;
  if (product(there.model.shape) === product(there.shape)) return true;
  const [a, b] = [places(there.model).sort(), places(here.model).sort()];
  return a.every((place, i) => place === b[i]);
}

/**
 * Those tensors of a state that a program has, by its names, as it stores them. `isPart`: the program differs, so that
 * what belongs together may come in part.
 */
function carried(tensors: StoredTensor[], there: StateSpec, here: StateSpec, isPart: boolean): StoredTensor[] {
  const stored = new Map(tensors.map((tensor) => [tensor.name, tensor]));
  if (there.program === here.program) return ofSameProgram(stored, here);
  const known = new Map(there.tensors.map((tensor) => [nameOf(tensor), tensor]));
  const found = new Map<string, StoredTensor>();
  for (const tensor of here.tensors) {
    const theirs = known.get(nameOf(tensor));
    const data = theirs && stored.get(theirs.tensor);
    if (data && difference(theirs, tensor) === null) found.set(tensor.tensor, relaid(data, theirs, tensor));
  }
  for (const output of ofOtherClasses(there, here)) {
    // The rows of its last layer mean nothing here.
    const kept = output.parameters.flatMap((name) => keptOf(name, here.tensors));
    for (const { tensor } of kept) found.delete(tensor);
  }
  if (!here.head) {
    // A class that there is not would have a loss of 30,000 here.
    const kept = layerOfFreeClasses(stored, there).flatMap((name) => keptOf(name, here.tensors));
    for (const { tensor } of kept) found.delete(tensor);
  }
  for (const choice of isPart ? (here.choices ?? []) : []) {
    // A change means nothing beside other channels, or another weight.
    const changes = keptOf(choice.change, here.tensors);
    const pair = [choice.indices, ...changes.map((tensor) => tensor.tensor)];
    const channels = found.get(choice.indices);
    const weight = here.tensors.find((tensor) => nameOf(tensor) === choice.weight);
    const isWithout = known.has(choice.weight) && !(weight && found.has(weight.tensor));
    const isPair = pair.every((name) => found.has(name)) && channels && areChannels(choice, channels.bytes);
    if (isWithout || !isPair) for (const name of pair) found.delete(name);
  }
  for (const pair of here.scales ?? []) {
    // Integers mean nothing with other scales.
    if (!pair.every((name) => found.has(name))) for (const name of pair) found.delete(name);
  }
  if (here.head?.names) {
    // Names say of all rows of the layer which are classes.
    const { kernel, bias, names } = here.head;
    const kept = [kernel, bias].flatMap((name) => keptOf(name, here.tensors));
    const isWhole = kept.every(({ tensor, slot }) => slot || found.has(tensor)) && found.has(names);
    if (!isWhole) for (const name of [names, ...kept.map(({ tensor }) => tensor)]) found.delete(name);
  }
  return [...found.values()];
}

/**
 * The weights of a last layer with rows of classes that there are not, by the state's names; none without. A file does
 * not say which layer it is: it is that whose bias is the one of free classes.
 */
function layerOfFreeClasses(stored: ReadonlyMap<string, StoredTensor>, there: StateSpec): string[] {
  const names = there.tensors.find((tensor) => nameOf(tensor) === CLASS_NAMES);
  if (names?.dtype !== "int32" || names.shape.length !== 2) return [];
  const [count = 0, words = 0] = names.shape;
  const rows = new Int32Array((stored.get(names.tensor)?.bytes ?? new Uint8Array()).slice().buffer);
  const free = Array.from({ length: count }, (_, label) => label).filter((label) => rows[label * words] === 0);
  const weights = there.tensors.filter(({ slot }) => !slot);
  const bias = weights.find(({ tensor, shape }) => shape.join() === `${count}` && isOfFree(stored.get(tensor), free));
  if (free.length === 0 || !bias) return [];
  const layer = nameOf(bias).replace(/[^/.]*$/, "");
  const isOfLayer = (it: StateTensor) => nameOf(it).startsWith(layer) && (it.model ?? it).shape.includes(count);
  return weights.filter(isOfLayer).map(nameOf);
}

/** Whether a bias is that of classes that there are not, at all labels of these. */
function isOfFree(bias: StoredTensor | undefined, free: readonly number[]): boolean {
  if (bias?.dtype !== "float32") return false;
  const values = new Float32Array(bias.bytes.slice().buffer);
  return free.every((label) => (values[label] ?? 0) <= FREE);
}

/** The same numbers as another program stores them. */
function relaid(data: StoredTensor, there: StateTensor, here: StateTensor): StoredTensor {
  const { tensor: name, dtype, shape } = here;
  if (!there.model || !here.model || isSameView(there.model.view, here.model.view)) {
    return { name, dtype, shape, bytes: data.bytes };
  }
  const width = ELEMENT_BYTES[dtype];
  const whole = new Int32Array(product(here.model.shape));
  for (const [i, place] of places(there.model).entries()) whole[place] = i;
  const bytes = new Uint8Array(byteSize(here));
  for (const [i, place] of places(here.model).entries()) {
    const from = (whole[place] ?? 0) * width;
    bytes.set(data.bytes.subarray(from, from + width), i * width);
  }
  return { name, dtype, shape, bytes };
}

/**
 * What a state of an older version is, which says of no tensor how it is laid out: with that where it can be told. Weights
 * of dense layers were stored as [inputs, outputs] or transposed, all others in one way. Of a square one the way counts that
 * is clearly nearer to what was built; a slot goes with its weight.
 */
function withLayouts(state: State, here: StateSpec): StateSpec {
  const there = state.spec;
  if (saysLayouts(there) || there.program === here.program) return there;
  const ours = new Map(here.tensors.map((tensor) => [nameOf(tensor), tensor]));
  const stored = new Map(state.tensors.map((tensor) => [tensor.name, tensor]));
  const transposed = new Map<string, boolean | null>(); // by the weight
  for (const tensor of there.tensors) {
    const [mine, data] = [ours.get(tensor.tensor), stored.get(tensor.tensor)];
    if (!mine || !data || tensor.slot) continue;
    transposed.set(tensor.tensor, isTransposed(tensor, mine, data.bytes, here.built?.(mine) ?? new Uint8Array()));
  }
  const laid = (tensor: StateTensor): StateTensor => {
    const mine = ours.get(tensor.tensor);
    if (!mine?.model) return tensor;
    const owners = [...transposed.keys()].filter((name) => `/${tensor.tensor}`.endsWith(`/${name}`));
    const owner = owners.sort((a, b) => b.length - a.length)[0] ?? "";
    const goesWithIt = owner !== "" && product(tensor.shape) === product(ours.get(owner)?.shape ?? []);
    const way = goesWithIt ? transposed.get(owner) : false;
    const shape = way ? mine.shape.toReversed() : mine.shape;
    if (way === null || tensor.shape.join() !== shape.join()) return tensor;
    return { ...tensor, model: way ? { ...mine.model, view: [...mine.model.view, TURNED] } : mine.model };
  };
  return { ...there, tensors: there.tensors.map(laid) };
}

/** The tensors of a state of the program itself: they lie as it stores them, whether or not it says how. */
function ofSameProgram(stored: Map<string, StoredTensor>, here: StateSpec): StoredTensor[] {
  return here.tensors.flatMap(({ tensor: name, dtype, shape }) => {
    const data = stored.get(name);
    const isSame = data?.dtype === dtype && data.shape.join() === shape.join();
    return isSame ? [{ name, dtype, shape, bytes: data.bytes }] : [];
  });
}

/** Whether a weight is stored the other way round than here; null where it cannot be told. */
function isTransposed(there: StateTensor, here: StateTensor, bytes: Bytes, built: Bytes): boolean | null {
  const isSame = there.shape.join() === here.shape.join();
  if (!isSquare(here) || !isSame || here.dtype !== "float32") {
    return here.shape.length === 2 && there.shape.join() === here.shape.toReversed().join() && !isSame;
  }
  const [numbers, first] = [new Float32Array(bytes.slice().buffer), new Float32Array(built.slice().buffer)];
  const side = here.shape[0] ?? 0;
  let [kept, changed] = [0, 0];
  for (let row = 0; row < side; row++) {
    for (let column = 0; column < side; column++) {
      const was = first[row * side + column] ?? 0;
      kept += ((numbers[row * side + column] ?? 0) - was) ** 2;
      changed += ((numbers[column * side + row] ?? 0) - was) ** 2;
    }
  }
  const [least, most] = [Math.min(kept, changed), Math.max(kept, changed)];
  return most === 0 || least > most / 2 ? null : changed < kept;
}

/** Whether a tensor has as many rows as columns, so that its shape does not say which are which. */
function isSquare(tensor: StateTensor): boolean {
  const [rows = 0, columns] = tensor.shape;
  return tensor.shape.length === 2 && rows === columns && rows > 1;
}

function isSameView(a: unknown[], b: unknown[]): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

function byName(spec: StateSpec, slot: boolean): Map<string, StateTensor> {
  return new Map(spec.tensors.filter((tensor) => tensor.slot === slot).map((tensor) => [nameOf(tensor), tensor]));
}

function frozenNames(spec: StateSpec): Set<string> {
  return new Set(spec.identity?.frozen.map((weight) => weight.name));
}

/** What differs in the tensors that both have. */
function inBoth(there: Map<string, StateTensor>, here: Map<string, StateTensor>): string[] {
  return [...here].flatMap(([name, tensor]) => {
    const theirs = there.get(name);
    return (theirs && difference(theirs, tensor)) ?? [];
  });
}

/** The names that one has and the other has not. */
function without(one: Map<string, unknown>, other: Map<string, unknown>): string[] {
  return [...one.keys()].filter((name) => !other.has(name));
}

/** The first of some differences, and how many more there are. */
function few(said: string[]): string[] {
  return said.length > MOST ? [...said.slice(0, MOST), `and ${said.length - MOST} more of these`] : said;
}

function listed(names: string[]): string {
  return names.slice(0, MOST).join(", ") + (names.length > MOST ? ` and ${names.length - MOST} more` : "");
}

function size(shape: number[]): string {
  return shape.join("x") || "one number";
}
