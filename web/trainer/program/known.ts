import type { Bytes } from "../bytes.ts";
import { DamagedProgramError } from "../errors.ts";
import { type Decoded, integer, list, oneOf, record, string } from "../manifest/strict-json.ts";

/**
 * A float32 tensor that is known when a plain model is exported: one that is stored, as a part is, or one that earlier
 * ones decide, whose places are the operands. A sum or product is of a first one of as many elements and a second one
 * whose axes, counted from the last, are as long or 1.
 */
export type Known = Decoded<typeof known>;
export const known = record(
  { source: oneOf("buffer", "state", "merged", "add", "multiply", "reshape"), shape: list(integer) },
  { number: integer, name: string, operands: list(integer) },
);

/** How many earlier tensors each takes. */
const TAKES = { buffer: 0, state: 0, merged: 0, add: 2, multiply: 2, reshape: 1 };

const MOST_AXES = 8;

/**
 * The bytes of all, in order: the bits that the host gets. Throws DamagedProgramError: they make no sense, or more than
 * `most` bytes.
 */
export function bytesOfKnown(tensors: Known[], stored: (tensor: Known) => Bytes, most: number): Bytes[] {
  const made: Bytes[] = [];
  let total = 0;
  for (const tensor of tensors) {
    if (tensor.shape.length > MOST_AXES) damagedAssembly(`a tensor of ${tensor.shape.length} axes`);
    const operands = (tensor.operands ?? []).flatMap((place) => {
      const [of, bytes] = [tensors[place], made[place]];
      return of && bytes ? [{ shape: of.shape, bytes }] : [];
    });
    if (operands.length !== (tensor.operands ?? []).length || operands.length !== TAKES[tensor.source]) {
      damagedAssembly(`${tensor.source} of ${tensor.operands}`);
    }
    const [one, other] = operands;
    const first = one?.bytes ?? stored(tensor);
    const size = tensor.shape.reduce((product, axis) => product * axis, 1);
    if (tensor.shape.some((axis) => axis < 0) || first.length !== 4 * size) {
      damagedAssembly(`a tensor ${tensor.shape} has ${first.length} bytes`);
    }
    total += first.length;
    if (total > most) damagedAssembly(`it makes ${total} bytes or more, of at most ${most}`);
    made.push(other ? combined(tensor, first, other) : first);
  }
  return made;
}

function combined(tensor: Known, first: Bytes, second: { shape: number[]; bytes: Bytes }): Bytes {
  const { shape, source } = tensor;
  const result = new Uint8Array(first.length);
  const [a, b, c] = [viewOf(first), viewOf(second.bytes), viewOf(result)];
  const steps = stepsIn(second.shape, shape);
  for (let at = 0; 4 * at < first.length; at++) {
    let [rest, place] = [at, 0];
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      const length = shape[axis] ?? 1;
      place += (rest % length) * (steps[axis] ?? 0);
      rest = Math.floor(rest / length);
    }
    const [x, y] = [a.getFloat32(4 * at, true), b.getFloat32(4 * place, true)];
    // What is rounded to float32 from the float64 sum or product of two float32 numbers is their float32 one.
    c.setFloat32(4 * at, source === "add" ? x + y : x * y, true);
  }
  return result;
}

function viewOf(bytes: Bytes): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** How far apart the elements of a tensor are along each axis of a larger one; 0 where it has one for all. */
function stepsIn(shape: number[], larger: number[]): number[] {
  const steps: number[] = larger.map(() => 0);
  let step = 1;
  for (let last = 1; last <= shape.length; last++) {
    const length = shape[shape.length - last] ?? 1;
    const axis = larger.length - last;
    if (axis < 0 || (length !== 1 && length !== larger[axis])) damagedAssembly(`${shape} does not fit ${larger}`);
    if (length !== 1) steps[axis] = step;
    step *= length;
  }
  return steps;
}

/** Throws DamagedProgramError. */
export function damagedAssembly(problem: string): never {
  throw new DamagedProgramError(`how its plain model is put together is damaged (${problem}): load it again`);
}
