import type { Bytes } from "../bytes.ts";
import type {
  ChosenChannels,
  ClassHead,
  Identity,
  LabelledOutput,
  StateTensor,
  StoredDtype,
} from "../manifest/manifest-records.ts";

/** One tensor of a state: little-endian numbers. */
export interface StoredTensor {
  readonly name: string;
  readonly dtype: StoredDtype;
  readonly shape: number[];
  readonly bytes: Bytes;
}

/** What a state is, or what a program takes for one. */
export interface StateSpec {
  /** Graph hash of the program. */
  readonly program: string;
  readonly tensors: StateTensor[];
  /** What the state belongs to; null where an older Pocketune did not say. */
  readonly identity: Identity | null;
  /**
   * Of the classes of each output, in the order of the outputs; none of an output that has none. They end with the last
   * output that has some.
   */
  readonly labels: string[][];
  /** Of the program; a file does not have them. */
  readonly choices?: ChosenChannels[];
  /** What the program begins with; a file does not have that. */
  readonly built?: (tensor: StateTensor) => Bytes;
  /** By the tensor of a weight in int8 that of its scales; a file does not have them. */
  readonly scales?: ReadonlyMap<string, string>;
  /** The last layer, where the state says what its classes are called; a file does not have it. */
  readonly head?: ClassHead | null;
  /** The outputs of the program that have labels; a file does not have them. */
  readonly labelled?: LabelledOutput[];
}

/** What the user calls a tensor. */
export function nameOf(tensor: StateTensor): string {
  return tensor.model?.name ?? tensor.tensor;
}

/** The tensors of a parameter, and what the optimizer keeps for it alone, of all tensors of a state. */
export function keptOf(parameter: string, tensors: readonly StateTensor[]): StateTensor[] {
  const names = tensors.filter((tensor) => !tensor.slot).map(nameOf);
  return tensors.filter((tensor) => {
    const owners = names.filter((name) => `/${nameOf(tensor)}`.endsWith(`/${name}`));
    return owners.sort((a, b) => b.length - a.length)[0] === parameter;
  });
}

/** Whether these are different channels that a weight has: the runtime does not look. */
export function areChannels(choice: ChosenChannels, bytes: Bytes): boolean {
  const indices = [...new Int32Array(bytes.slice().buffer)];
  return new Set(indices).size === indices.length && indices.every((i) => i >= 0 && i < choice.channels);
}
