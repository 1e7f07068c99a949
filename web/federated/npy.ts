import type { Bytes } from "../trainer.ts";
import { RefusedRoundError } from "./errors.ts";

/** An array as it travels: numbers in row-major order, as many as the shape says. */
export interface Tensor {
  readonly shape: readonly number[];
  readonly numbers: Float32Array<ArrayBuffer>;
}

const MAGIC = [0x93, ...[..."NUMPY"].map((letter) => letter.charCodeAt(0))];
const ALIGNMENT = 64;
const HEADER = /^\{\s*'descr':\s*'([^']*)',\s*'fortran_order':\s*(True|False),\s*'shape':\s*\(([0-9, ]*)\),?\s*\}\s*$/;
const MOST = 2 ** 31;

export function product(shape: readonly number[]): number {
  return shape.reduce((all, d) => Math.min(all * d, MOST), 1);
}

/** NumPy's `.npy` file of an array, version 1.0. */
export function npyOf({ shape, numbers }: Tensor): Bytes {
  const axes = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  const text = `{'descr': '<f4', 'fortran_order': False, 'shape': ${axes}, }`;
  const start = MAGIC.length + 4;
  const end = Math.ceil((start + text.length + 1) / ALIGNMENT) * ALIGNMENT;
  const file = new Uint8Array(end + numbers.byteLength);
  file.set([...MAGIC, 1, 0, (end - start) & 0xff, (end - start) >> 8]);
  file.set(new TextEncoder().encode(`${text.padEnd(end - start - 1)}\n`), start);
  file.set(new Uint8Array(numbers.buffer, numbers.byteOffset, numbers.byteLength), end);
  return file;
}

/**
 * The array of a file: float32, or float64 as of a strategy that adds noise; a number that no float32 holds becomes NaN.
 * Throws RefusedRoundError: it is none of these, little-endian, in row-major order. Nothing is unpickled.
 */
export function arrayIn(name: string, bytes: Bytes): Tensor {
  const refuse = (why: string): never => {
    throw new RefusedRoundError(`${name} came as no array: ${why}`);
  };
  if (bytes.length < 12 || MAGIC.some((byte, i) => bytes[i] !== byte)) refuse("it is no .npy file");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const version = view.getUint8(6);
  const start = version === 1 ? 10 : 12;
  const length = version === 1 ? view.getUint16(8, true) : view.getUint32(8, true);
  if (version < 1 || version > 3 || length > bytes.length - start) refuse("its head is cut short");
  const data = start + length;
  const header = HEADER.exec(String.fromCharCode(...bytes.subarray(start, Math.min(data, start + 4096))));
  const [, type, turned, axes = ""] = header ?? refuse("its head cannot be read");
  if (turned === "True") refuse("it is in Fortran's order");
  const parts = axes.split(",").map((axis) => axis.trim());
  const shape = parts
    .filter(Boolean)
    .map((axis) => (/^\d{1,10}$/.test(axis) ? Number(axis) : refuse(`shape (${axes})`)));
  const width = type === "<f4" ? 4 : type === "<f8" ? 8 : 0;
  if (width === 0) throw new RefusedRoundError(`${name} came as ${type}, and is float32`);
  if (product(shape) * width !== bytes.length - data) refuse(`[${shape}] of ${type} in ${bytes.length - data} bytes`);
  const { buffer } = bytes.slice(data);
  return { shape, numbers: width === 4 ? new Float32Array<ArrayBuffer>(buffer) : rounded(new Float64Array(buffer)) };
}

function rounded(numbers: Float64Array): Float32Array<ArrayBuffer> {
  const found = new Float32Array(numbers.length);
  numbers.forEach((number, i) => {
    found[i] = Number.isFinite(Math.fround(number)) ? number : Number.NaN;
  });
  return found;
}
