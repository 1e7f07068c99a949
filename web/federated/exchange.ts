import { type Bytes, type Program, places, type StateTensor } from "../trainer.ts";
import { RefusedRoundError } from "./errors.ts";
import { calledOf, federatedIdentity, LOSS_OF_STEP } from "./identity.ts";
import { product, type Tensor } from "./npy.ts";
import { namesAtHome, personalIn } from "./patterns.ts";

/** Slots of FedProx's term, which a round sets. */
const [MU, ANCHOR] = ["/proximal_mu", "/proximal_anchor/"];
/** Where the owner sets no bound: so many times the norm of what was built, and as much for each number. */
const TIMES = 10;
/** A bias that says that there is no such class; a mean rounds it. */
const FREE = -30_000;

/** A state tensor as it travels: in the model's layout, of a weight that trains in part the part. */
class Travelling {
  readonly tensor: string;
  /** Of what travels; flat where that is no box. */
  readonly shape: readonly number[];
  /** Where each element of what travels is stored. */
  private readonly order: Uint32Array;

  constructor(spec: StateTensor) {
    this.tensor = spec.tensor;
    const at = spec.model ? places(spec.model) : Int32Array.from({ length: product(spec.shape) }, (_, i) => i);
    this.order = Uint32Array.from(at.keys()).sort((a, b) => (at[a] ?? 0) - (at[b] ?? 0));
    this.shape = boxOf(at, spec.model?.shape ?? spec.shape);
  }

  sent(bytes: Bytes): Tensor {
    const stored = new Float32Array(bytes.slice().buffer);
    return { shape: this.shape, numbers: Float32Array.from(this.order, (at) => stored[at] ?? 0) };
  }

  /** Inverse of `sent`. */
  taken({ numbers }: Tensor): Bytes {
    const stored = new Float32Array(this.order.length);
    this.order.forEach((at, i) => {
      stored[at] = numbers[i] ?? 0;
    });
    return new Uint8Array(stored.buffer);
  }
}

/** The shape of a part of a tensor. */
function boxOf(at: Int32Array, whole: readonly number[]): readonly number[] {
  const strides = whole.map((_, axis) => product(whole.slice(axis + 1)));
  const box = whole.map((d, axis) => new Set(at.map((place) => Math.floor(place / (strides[axis] ?? 1)) % d)).size);
  return product(box) === at.length ? box : [at.length];
}

/** The entries whose names are so, and the others. */
function parted<T>(all: ReadonlyMap<string, T>, isSo: (name: string) => boolean): [Map<string, T>, Map<string, T>] {
  const entries = [...all];
  return [new Map(entries.filter(([name]) => isSo(name))), new Map(entries.filter(([name]) => !isSo(name)))];
}

/** What of a program's state travels, and checks of what a server sends: `converter.federated.arrays` of the host. */
export class Exchange {
  private constructor(
    /** What the programs of all clients have in common. */
    readonly identity: string,
    /** What a server may name: that, or the one that has the labels in it whatever is personal, which says all the more. */
    readonly accepted: readonly unknown[],
    /** The trained tensors and statistics that are shared, by the model's names. */
    readonly trained: ReadonlyMap<string, Travelling>,
    /** Those that stay at home (FedPer). */
    readonly personal: ReadonlyMap<string, Travelling>,
    /** Tensors of the program that stay here: those that are personal, and with a last layer that has room for classes their names. */
    private readonly atHome: readonly string[],
    /** Those of the optimizer for what is shared, which stay at home unless the server sends them; FedProx's are none of them. */
    readonly slots: ReadonlyMap<string, Travelling>,
    /** Tensors of the program that a client has from round to round: slots, what is personal, and its slots. */
    readonly kept: ReadonlySet<string>,
    /** The slot of FedProx's mu, and of each trained tensor the one that it is held near. */
    private readonly proximal: { readonly mu: string | undefined; readonly anchors: ReadonlyMap<string, string> },
    /** The bias of a head with room for classes, and how many it had from the start. */
    private readonly later: { readonly bias: string; readonly own: number } | null,
    private readonly bound: number | undefined,
    private readonly built: ReadonlyMap<string, Tensor>,
  ) {}

  /**
   * `bound`: the owner's, of the norm of all trained arrays; else ten times that of what was built, and ten times the root of the
   * number of numbers. `patterns`: of what is personal. Throws InputError: no two programs of this one can be averaged, or a pattern
   * matches nothing, or all match everything.
   */
  static async of(program: Program, bound?: number, patterns: readonly string[] = []): Promise<Exchange> {
    const { manifest } = program;
    const states = manifest.stateTensors.filter((it) => it.dtype === "float32" && it.tensor !== LOSS_OF_STEP);
    const travelling = (specs: StateTensor[]) => new Map(specs.map((it) => [calledOf(it), new Travelling(it)]));
    const weights = travelling(states.filter((it) => !it.slot));
    const mine = personalIn([...weights.keys()], patterns);
    const isProximal = (name: string) => name.includes(MU) || name.includes(ANCHOR);
    const allSlots = travelling(states.filter((it) => it.slot && !isProximal(calledOf(it))));
    const isOwn = (slot: string) => [...mine].some((name) => slot.endsWith(`/${name}`));
    const [personal, trained] = parted(weights, (name) => mine.has(name));
    const [, slots] = parted(allSlots, isOwn);
    const kept = new Set([...allSlots.values(), ...personal.values()].map(({ tensor }) => tensor));
    const held = states.filter((it) => it.slot && calledOf(it).includes(ANCHOR));
    const anchors = held.map((it): [string, string] => {
      const of = weights.get(calledOf(it).slice(calledOf(it).indexOf(ANCHOR) + ANCHOR.length));
      return [of?.tensor ?? "", it.tensor];
    });
    const mu = states.find((it) => it.slot && calledOf(it).endsWith(MU))?.tensor;
    const { head } = manifest.fields;
    const shared = states.filter((it) => trained.has(calledOf(it)));
    const built = new Map(shared.map((it) => [calledOf(it), new Travelling(it).sent(program.initial(it))]));
    const proximal = { mu, anchors: new Map(anchors) };
    const identity = await federatedIdentity(manifest, mine);
    const accepted = [identity, await federatedIdentity(manifest)];
    const names = namesAtHome(program, (name) => personal.has(name));
    const atHome = [...[...personal.values()].map(({ tensor }) => tensor), ...(names === null ? [] : [names])];
    return new Exchange(
      identity,
      accepted,
      trained,
      personal,
      atHome,
      slots,
      kept,
      proximal,
      head?.names ? head : null,
      bound,
      built,
    );
  }

  /** The largest L2 norm of all trained arrays together that is taken. */
  get norm(): number {
    if (this.bound !== undefined) return this.bound;
    const numbers = [...this.built.values()].reduce((sum, tensor) => sum + tensor.numbers.length, 0);
    return TIMES * this.normOf(this.built) + TIMES * Math.sqrt(numbers);
  }

  /** Whether the program was built with FedProx's term. */
  get hasProximal(): boolean {
    return this.proximal.mu !== undefined;
  }

  /** The arrays that leave the device, by the model's names. */
  sent(state: ReadonlyMap<string, Bytes>, withSlots: boolean): Map<string, Tensor> {
    const given = (tensor: string) => state.get(tensor) ?? new Uint8Array();
    return new Map([...this.travelling(withSlots)].map(([name, one]) => [name, one.sent(given(one.tensor))]));
  }

  /** Checked arrays as the program stores them, by its tensors. Throws RefusedRoundError. */
  taken(arrays: ReadonlyMap<string, Tensor>): Map<string, Bytes> {
    const expected = this.travelling(this.asksSlots(arrays.keys()));
    for (const name of arrays.keys()) {
      if (this.personal.has(name)) {
        throw new RefusedRoundError(
          `the server sent '${name}', which is personal here and stays: both need the same patterns (personal)`,
        );
      }
      if (!expected.has(name))
        throw new RefusedRoundError(`the server sent '${name}', which this program does not train.`);
    }
    const missing = [...expected.keys()].filter((name) => !arrays.has(name));
    if (missing.length > 0) {
      const others = missing.length > 1 ? ` and ${missing.length - 1} others` : "";
      throw new RefusedRoundError(`the server did not send ${missing[0]}${others}`);
    }
    const taken = new Map<string, Bytes>();
    for (const [name, array] of arrays) {
      const one = expected.get(name);
      if (!one) continue;
      if (`${array.shape}` !== `${one.shape}` || array.shape.length !== one.shape.length) {
        throw new RefusedRoundError(`${name} came as [${array.shape}], and is [${one.shape}]`);
      }
      if (!array.numbers.every(Number.isFinite)) throw new RefusedRoundError(`${name} came with NaN or infinity`);
      taken.set(one.tensor, one.taken(array));
    }
    const [size, most] = [this.normOf(arrays), this.norm];
    if (!(size <= most)) {
      const [is, allowed] = [size.toPrecision(3), most.toPrecision(3)];
      throw new RefusedRoundError(`the arrays of the server have a norm of ${is}, and ${allowed} is allowed here`);
    }
    return taken;
  }

  /** What a round begins with: the tensors of the server, `own` that are personal, and what FedProx's term is held by. */
  begun(
    taken: ReadonlyMap<string, Bytes>,
    proximalMu: number | null,
    own: ReadonlyMap<string, Bytes>,
  ): Map<string, Bytes> {
    const all = new Map([...own, ...taken]);
    for (const [tensor, anchor] of this.proximal.anchors) all.set(anchor, all.get(tensor) ?? new Uint8Array());
    const { mu } = this.proximal;
    if (proximalMu !== null && mu !== undefined) all.set(mu, new Uint8Array(Float32Array.of(proximalMu).buffer));
    return all;
  }

  /** What of a state stays here. */
  personalOf(state: ReadonlyMap<string, Bytes>): Map<string, Bytes> {
    return new Map(this.atHome.map((tensor) => [tensor, state.get(tensor) ?? new Uint8Array()] as const));
  }

  /** Whether what a server sent has the optimizer's slots, which it then gets back. */
  asksSlots(names: Iterable<string>): boolean {
    return [...names].some((name) => this.slots.has(name));
  }

  /** Bytes of numbers that travel in one direction. */
  bytes(withSlots: boolean): number {
    return [...this.travelling(withSlots).values()].reduce((sum, one) => sum + 4 * product(one.shape), 0);
  }

  private travelling(withSlots: boolean): ReadonlyMap<string, Travelling> {
    return withSlots ? new Map([...this.trained, ...this.slots]) : this.trained;
  }

  /** The L2 norm, added up in double. A bias of -30,000 says that there is no such class: what is below that counts. */
  private normOf(arrays: ReadonlyMap<string, Tensor>): number {
    let total = 0;
    for (const name of this.trained.keys()) {
      const own = this.later?.bias === name ? this.later.own : Number.POSITIVE_INFINITY;
      arrays.get(name)?.numbers.forEach((number, i) => {
        const counted = i >= own && number <= FREE / 2 ? number - FREE : number;
        total += counted * counted;
      });
    }
    return Math.sqrt(total);
  }
}
