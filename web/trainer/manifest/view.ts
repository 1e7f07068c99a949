import { product } from "./manifest.ts";
import type { ModelTensor } from "./manifest-records.ts";

/** Whether the view of a tensor of the model gives so many elements as one of the shape `stored` has. */
export function givesElements({ shape, view }: ModelTensor, stored: number[]): boolean {
  const given = view.reduce<number[] | undefined>((now, step) => now && viewed(step, now), shape);
  return given !== undefined && product(given) === product(stored);
}

/** Where each element of what is stored lies in the model's tensor; the view fits it. */
export function places({ shape, view }: ModelTensor): Int32Array {
  let now = shape;
  let found = Int32Array.from({ length: product(shape) }, (_, i) => i);
  for (const step of view) {
    const next = viewed(step, now) ?? [];
    found = taken(step, found, now, next);
    now = next;
  }
  return found;
}

/** The elements of a tensor of `shape` behind a step of a view, which gives the shape `next`. */
function taken(step: unknown, elements: Int32Array<ArrayBuffer>, shape: number[], next: number[]) {
  const [kind, ...rest] = step as [string, ...unknown[]];
  if (kind === "reshape") return elements;
  const strides = shape.map((_, axis) => product(shape.slice(axis + 1)));
  const axes = kind === "transpose" ? (rest[0] as number[]) : shape.map((_, axis) => axis);
  const [axis = 0, start = 0] = kind === "slice" ? (rest as number[]) : [];
  const first = start * (strides[axis] ?? 0);
  return Int32Array.from({ length: product(next) }, (_, at) => {
    let [left, place] = [at, first];
    for (let i = next.length - 1; i >= 0; i--) {
      const length = next[i] ?? 1;
      place += (left % length) * (strides[axes[i] ?? 0] ?? 0);
      left = Math.floor(left / length);
    }
    return elements[place] ?? 0;
  });
}

/** The shape behind a step of a view (transpose, reshape, slice); undefined when it is none or does not fit `shape`. */
export function viewed(step: unknown, shape: number[]): number[] | undefined {
  if (!Array.isArray(step)) return undefined;
  const [kind, ...rest] = step as [unknown, ...unknown[]];
  if (kind === "slice" && rest.length === 3) return sliced(rest, shape);
  const numbers = rest[0];
  if (rest.length !== 1 || !areInts(numbers)) return undefined;
  if (kind === "transpose") {
    const isOrder = [...numbers].sort((a, b) => a - b).every((axis, i) => axis === i);
    return isOrder && numbers.length === shape.length ? numbers.map((axis) => shape[axis] ?? 0) : undefined;
  }
  const isShape = numbers.every((d) => d > 0) && product(numbers) === product(shape);
  return kind === "reshape" && isShape ? numbers : undefined;
}

function sliced(numbers: unknown[], shape: number[]): number[] | undefined {
  if (!areInts(numbers)) return undefined;
  const [axis = -1, start = -1, stop = -1] = numbers;
  const size = shape[axis];
  if (size === undefined || start < 0 || start >= stop || stop > size) return undefined;
  return shape.map((d, i) => (i === axis ? stop - start : d));
}

function areInts(values: unknown): values is number[] {
  return Array.isArray(values) && values.every(Number.isSafeInteger);
}
