/** Bytes in memory of their own or of a file. */
export type Bytes = Uint8Array<ArrayBuffer>;

/** sha256 of some pieces, one behind the other. */
export async function sha256(...pieces: Uint8Array[]): Promise<Bytes> {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", joined(pieces)));
}

/** The pieces, one behind the other, in one array. */
export function joined(pieces: Uint8Array[]): Bytes {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** Lower-case hexadecimal digits. */
export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** UTF-8 as text. Throws TypeError when it is none. */
export function text(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
}

/** Text as UTF-8. */
export function utf8(words: string): Bytes {
  return new TextEncoder().encode(words);
}

/** Whether both hold the same bytes. */
export function areEqual(a: Uint8Array, b: Uint8Array): boolean {
  return a.length === b.length && a.every((byte, i) => byte === b[i]);
}

/** Whether all bytes are 0. */
export function isZero(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0);
}

/** Whether the little-endian float32 numbers are all finite. */
export function isFinite32(bytes: Uint8Array): boolean {
  // Where the exponent has all bits set stands an infinity or NaN.
  for (let at = 0; at + 3 < bytes.length; at += 4) {
    if (((bytes[at + 3] ?? 0) & 0x7f) === 0x7f && (bytes[at + 2] ?? 0) >= 0x80) return false;
  }
  return true;
}

/** A copy of the bytes of some numbers. */
export function bytesOf(values: ArrayBufferView): Bytes {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength).slice();
}
