import type { Bytes } from "./bytes.ts";
import { damagedAssembly } from "./known.ts";

/** Float32 numbers as float16, little-endian. Throws DamagedProgramError for one that float16 does not hold. */
export function asHalf(data: Bytes): Bytes {
  if (data.length % 4) damagedAssembly(`${data.length} bytes are no float32 numbers`);
  const halves = new Uint8Array(data.length / 2);
  const [from, to] = [new DataView(data.buffer, data.byteOffset, data.length), new DataView(halves.buffer)];
  for (let at = 0; 4 * at < data.length; at++) to.setUint16(2 * at, half(from.getUint32(4 * at, true)), true);
  return halves;
}

/** The bits of a float16 that is the float32 of these bits. */
function half(bits: number): number {
  const [sign, exponent, fraction] = [(bits >>> 16) & 0x8000, (bits >>> 23) & 0xff, bits & 0x7fffff];
  // Of float16 the exponent is 112 less; below 1 it is that of the smallest, and the leading 1 is written out.
  const less = exponent - 112;
  let [whole, lost] = [0, less >= 0x1f || less < -10 ? 1 : 0];
  if (exponent === 0) lost = fraction;
  else if (exponent === 0xff) [whole, lost] = [(0x1f << 10) | (fraction >>> 13), fraction & 0x1fff];
  else if (!lost && less > 0) [whole, lost] = [(less << 10) | (fraction >>> 13), fraction & 0x1fff];
  else if (!lost) {
    const full = fraction | 0x800000;
    [whole, lost] = [full >>> (14 - less), full & ((1 << (14 - less)) - 1)];
  }
  if (lost) damagedAssembly("a number is no float16");
  return sign | whole;
}
