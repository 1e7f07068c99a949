import { product } from "./manifest.ts";

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
