import type { Bytes } from "../bytes.ts";
import { damagedAssembly } from "./known.ts";

/** Float32 numbers as float16, little-endian. Throws DamagedProgramError for what float16 does not hold. */
export function asHalf(data: Bytes): Bytes {
  if (data.length % 4) damagedAssembly("a number is no float16");
  const numbers = new Float32Array(data.slice().buffer);
  const bits = new Uint32Array(numbers.buffer);
  return new Uint8Array(Uint16Array.from(bits, (b, i) => half(b, Math.abs(numbers[i] as number))).buffer);
}

/** The bits of a float16 that is the float32 of these bits and this size. */
function half(bits: number, size: number): number {
  // Ten bits of the fraction stay, and the exponent is 112 less; what is below the smallest one counts steps of 2^-24.
  let whole = size < 2 ** -14 ? size * 2 ** 24 : (bits & 0x7fffffff) / 0x2000 - 112 * 0x400;
  if (size < Infinity) whole = whole < 0x7c00 ? whole : 0.5;
  else whole -= 112 * 0x400;
  if (whole % 1) damagedAssembly("a number is no float16");
  return ((bits >>> 16) & 0x8000) | whole;
}
