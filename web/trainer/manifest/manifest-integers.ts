import { product } from "./manifest.ts";
import type { ManifestFields, StateTensor } from "./manifest-records.ts";

/** Each state tensor of a manifest in int8 is a weight's, with scales of its own beside it. */
export function checkIntegers(
  { head, parameters }: ManifestFields,
  state: ReadonlyMap<string, StateTensor>,
  fail: (problem: string) => never,
): void {
  const scaled = parameters.flatMap((parameter) => parameter.pieces).filter((piece) => piece.scales);
  const scales = scaled.map((piece) => piece.scales?.tensor ?? "");
  for (const { tensor, scales: said } of scaled) {
    const length = state.get(tensor)?.shape[said?.axis ?? 0];
    const stored = state.get(said?.tensor ?? "");
    const fits = stored?.dtype === "float32" && [1, length].includes(product(stored.shape));
    if (length === undefined || !fits) {
      fail(`parameters: '${said?.tensor}' is no scales of '${tensor}' in state_tensors`);
    }
  }
  const ofIntegers = [...state.values()].filter((tensor) => tensor.dtype === "int8").map((tensor) => tensor.tensor);
  const areSame = `${scaled.map((piece) => piece.tensor).sort()}` === `${ofIntegers.sort()}`;
  if (!areSame || new Set(scales).size < scales.length) {
    fail("parameters: each state tensor in int8, and no other, has scales of its own");
  }
  const set = parameters.find(
    (it) => it.pieces.some((piece) => piece.scales) && [head?.kernel, head?.bias].includes(it.name),
  );
  if (set) fail(`head: '${set.name}' is in int8, and a session sets float32 numbers`);
}
