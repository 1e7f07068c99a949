import { type Bytes, bytesOf } from "../bytes.ts";
import { type Manifest, product } from "../manifest/manifest.ts";
import type { ChosenChannels, ParameterSpec, StateTensor } from "../manifest/manifest-records.ts";
import { redrawnOf } from "../manifest/redrawn.ts";
import { places } from "../manifest/view.ts";
import { keptOf, type StoredTensor } from "../program/state-spec.ts";
import { Random, shuffled } from "../session/random.ts";

/** What is asked of a program, which exports by this file itself. */
interface Built {
  readonly manifest: Manifest;
  /** A state tensor as it was built. */
  initial(tensor: StateTensor): Bytes;
}

/**
 * Channels redrawn during a training: a weight takes up what was added to its channels, and as many others train; the twin
 * of the host's `converter/runtime/session/redrawing.py`.
 */
export class RedrawnChannels {
  private readonly redrawn: [ParameterSpec, ChosenChannels][];

  constructor(private readonly program: Built) {
    this.redrawn = redrawnOf(program.manifest.fields);
  }

  /** Channels by weight, in order, drawn with equal chances by the generator of the orders, with seeds of its own. */
  drawn(seed: number, epoch: number): Map<string, Int32Array> {
    const random = Random.ofEpoch(-1 - seed, epoch);
    return new Map(
      this.redrawn.map(([weight, { indices, channels }]) => {
        const many = product(this.program.manifest.stateTensors.find((it) => it.tensor === indices)?.shape ?? []);
        const all = Array.from({ length: channels }, (_, i) => i);
        return [weight.name, Int32Array.from(shuffled(all, random).slice(0, many)).sort()];
      }),
    );
  }

  /** The state in which others train: `channels` by weight. The model computes the same but for rounding. */
  after(state: readonly StoredTensor[], channels: ReadonlyMap<string, Int32Array>): StoredTensor[] {
    return this.folded(state).map((tensor) => {
      const weight = this.redrawn.find(([, choice]) => choice.indices === tensor.name)?.[0];
      const chosen = weight && channels.get(weight.name);
      return chosen ? { ...tensor, bytes: new Uint8Array(chosen.slice().buffer) } : tensor;
    });
  }

  /** The state in which weights have taken up what was added to them; that, and what is kept of it, is as built. */
  folded(state: readonly StoredTensor[]): StoredTensor[] {
    const after = new Map(state.map((tensor) => [tensor.name, tensor.bytes]));
    for (const [weight, choice] of this.redrawn) {
      const change = this.program.manifest.fields.parameters.find((it) => it.name === choice.change);
      const [base, added] = [weight, change].map((it) => it?.pieces[0]?.tensor ?? "");
      const numbers = floats(after.get(base ?? ""));
      const channels = new Int32Array((after.get(choice.indices) ?? new Uint8Array()).slice().buffer);
      const own = floats(after.get(added ?? ""));
      if (!change || !base) continue; // the manifest was checked: there are both
      for (const [i, place] of placesOf(weight, change, choice, channels).entries()) {
        numbers[place] = (numbers[place] ?? 0) + (own[i] ?? 0);
      }
      after.set(base, bytesOf(numbers));
      const kept = keptOf(change.name, this.program.manifest.stateTensors);
      for (const tensor of kept) after.set(tensor.tensor, this.program.initial(tensor));
    }
    return state.map((tensor) => ({ ...tensor, bytes: after.get(tensor.name) ?? tensor.bytes }));
  }
}

/** Where each number of a change, as it is stored, lies in the weight as that is stored. */
function placesOf(
  weight: ParameterSpec,
  change: ParameterSpec,
  choice: ChosenChannels,
  channels: Int32Array,
): number[] {
  const [stored, changes] = [weight, change].map(({ name, shape, pieces }) =>
    places({ name, shape, view: pieces[0]?.view ?? [] }),
  );
  const at = new Int32Array(stored?.length ?? 0);
  stored?.forEach((place, i) => {
    at[place] = i;
  });
  const inWeight = places({ name: weight.name, shape: weight.shape, view: choice.product ?? [] });
  const outputs = change.shape.at(-1) ?? 1;
  return [...(changes ?? [])].map((place) => {
    const row = Math.floor(place / outputs);
    const channel = channels[row % channels.length] ?? 0;
    const whole = Math.floor(row / channels.length) * choice.channels + channel;
    return at[inWeight[whole * outputs + (place % outputs)] ?? 0] ?? 0;
  });
}

function floats(bytes: Bytes | undefined): Float32Array {
  return bytes ? new Float32Array(bytes.slice().buffer) : new Float32Array();
}
