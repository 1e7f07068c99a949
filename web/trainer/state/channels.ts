import { areEqual, type Bytes } from "../bytes.ts";
import type { Manifest } from "../manifest/manifest.ts";
import type { Program } from "../program/program.ts";
import type { StoredTensor } from "../program/state-spec.ts";

/** Whether anything in a state but the choice of channels is not as it was built. */
export function hasTrained(program: Program, state: StoredTensor[]): boolean {
  const chosen = program.manifest.choices.map((choice) => choice.indices);
  const built = program.initialState();
  return state.some(
    (now, i) => !chosen.includes(now.name) && !areEqual(now.bytes, built[i]?.bytes ?? new Uint8Array()),
  );
}

/** Which channels train, by weight, in order. */
export function trainedOf(manifest: Manifest, state: readonly StoredTensor[]): Map<string, Int32Array> {
  const tensors = new Map(state.map((tensor) => [tensor.name, tensor.bytes]));
  return new Map(
    manifest.choices.map(({ weight, indices }) => [
      weight,
      new Int32Array((tensors.get(indices) ?? new Uint8Array()).slice().buffer),
    ]),
  );
}

/** As many channels as train that have the most information, in order; of equal ones the first. */
export function chosenOf(manifest: Manifest, information: Map<string, Float64Array>): Map<string, Int32Array> {
  return new Map(
    manifest.choices.map((choice) => {
      const each = information.get(choice.weight) ?? new Float64Array();
      const many = manifest.stateTensors.find((tensor) => tensor.tensor === choice.indices)?.shape[0] ?? 0;
      const largest = [...each.keys()].sort((a, b) => (each[b] ?? 0) - (each[a] ?? 0)).slice(0, many);
      return [choice.weight, Int32Array.from(largest.sort((a, b) => a - b))];
    }),
  );
}

/** The state as built, with other channels. */
export function withChannels(program: Program, chosen: Map<string, Int32Array>): StoredTensor[] {
  return program.initialState().map((tensor) => {
    const choice = program.manifest.choices.find((each) => each.indices === tensor.name);
    const channels = choice && chosen.get(choice.weight);
    return channels ? { ...tensor, bytes: new Uint8Array(channels.slice().buffer) as Bytes } : tensor;
  });
}
