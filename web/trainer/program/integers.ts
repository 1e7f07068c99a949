import type { Bytes } from "../bytes.ts";
import { type Manifest, product } from "../manifest/manifest.ts";

/** By the state tensor of a weight in int8 that of its scales. */
export function scalesOf(manifest: Manifest): Map<string, string> {
  const pieces = manifest.fields.parameters.flatMap((parameter) => parameter.pieces);
  return new Map(pieces.flatMap(({ tensor, scales }) => (scales ? [[tensor, scales.tensor]] : [])));
}

/** The tensors of a state by name, those in int8 as the float32 numbers that they stand for. */
export function realTensors(manifest: Manifest, state: ReadonlyMap<string, Bytes>): Map<string, Bytes> {
  const shapes = new Map(manifest.stateTensors.map((tensor) => [tensor.tensor, tensor.shape]));
  const real = new Map(state);
  for (const { tensor, scales } of manifest.fields.parameters.flatMap((parameter) => parameter.pieces)) {
    const [integers, by] = [state.get(tensor), scales && state.get(scales.tensor)];
    // Each scale is that of so many integers, and they begin again after the last.
    const inner = product((shapes.get(tensor) ?? []).slice((scales?.axis ?? 0) + 1));
    if (integers && by) real.set(tensor, numbers(integers, by, inner));
  }
  return real;
}

function numbers(integers: Bytes, scales: Bytes, inner: number): Bytes {
  const by = new Float32Array(scales.slice().buffer);
  const signed = new Int8Array(integers.buffer, integers.byteOffset, integers.length);
  const made = Float32Array.from(
    signed,
    (integer, i) => integer * (by[Math.floor(i / inner) % by.length] ?? Number.NaN),
  );
  return new Uint8Array(made.buffer);
}
