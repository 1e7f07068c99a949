import {
  type Bytes,
  DivergedError,
  MemoryStore,
  type Plan,
  type Program,
  type RuntimeFactory,
  type Sample,
  type Store,
  Trainer,
} from "../trainer.ts";
import { clipped } from "./clipping.ts";
import { RefusedRoundError } from "./errors.ts";
import { Exchange } from "./exchange.ts";
import type { Tensor } from "./npy.ts";
import { type Bounds, checkedBounds, planOf, type RoundPlan } from "./round-plan.ts";
import type { Entry, Figures } from "./values.ts";

type Arrays = ReadonlyMap<string, Tensor>;
type Config = ReadonlyMap<string, Entry>;

/** What a training answers; `kept` is for the next round of the same run: the optimizer's slots, and what is personal. */
export interface Trained {
  readonly arrays: Arrays;
  readonly figures: Figures;
  readonly kept: ReadonlyMap<string, Bytes>;
}

const [SHARED, OWN] = ["shared.state", "own.state"];
const UNANSWERED = "unanswered";
const SHOWN = 16;

/**
 * A client's part in a round: a program in a trainer of its own, which never touches the state that the page's own trainer
 * keeps. `shared` is what the page may `adopt`. Whatever a server sends, the worst that comes of it is a round that ends with a
 * sentence.
 */
export class Participant {
  private constructor(
    private readonly trainer: Trainer,
    private readonly store: Store,
    private readonly bounds: Bounds,
    private built: ReadonlyMap<string, Bytes>,
    /** What travels. */
    readonly exchange: Exchange,
  ) {}

  /**
   * Opens a program. `store` keeps the shared state: one of its own, not that of the user's state. `personal`: patterns of trained
   * tensors that stay here (FedPer), such as `head/*`; the server needs the same. They are never sent, and nothing that a server sends
   * overwrites them: they begin with those of `own.state` in the store, the whole model as it was last trained here, or as the page
   * exported it there. Throws InputError: it is none that several can train, or a pattern matches nothing, or all match everything;
   * StateError: `own.state` is of another program; RuntimeFailedError: it is not taken; RangeError: nothing is within the bounds.
   */
  static async open(
    program: Program,
    runtime: RuntimeFactory,
    store: Store,
    bounds: Bounds = {},
    personal: readonly string[] = [],
  ): Promise<Participant> {
    const exchange = await Exchange.of(program, checkedBounds(bounds).norm, personal);
    const trainer = await Trainer.open(program, runtime, new MemoryStore());
    try {
      const built = await trainer.tensors();
      const own = personal.length > 0 ? await store.read(OWN) : null;
      if (own) await trainer.restore(own);
      const begun = new Map([...built, ...exchange.personalOf(await trainer.tensors())]);
      return new Participant(trainer, store, bounds, begun, exchange);
    } catch (error) {
      await trainer.close();
      throw error;
    }
  }

  /** What a server's config must name as `program`. */
  get identity(): string {
    return this.exchange.identity;
  }

  /** Bytes of numbers that leave the device in a round. */
  get bytes(): number {
    return this.exchange.bytes(false);
  }

  /** The trained tensors that stay here, by the model's names. */
  get personal(): ReadonlySet<string> {
    return new Set(this.exchange.personal.keys());
  }

  /**
   * The arrays of the server as they came last, and what is personal as it was here: a state file that any trainer of the program
   * restores; null: none came.
   */
  async shared(): Promise<Bytes | null> {
    return await this.store.read(SHARED);
  }

  /** The whole model as it was last trained here, a state file, where something is personal; null: there is none. */
  async own(): Promise<Bytes | null> {
    return await this.store.read(OWN);
  }

  /** The head of a message that was taken and is not answered yet; null: there is none. */
  async unanswered(): Promise<Bytes | null> {
    return await this.store.read(UNANSWERED);
  }

  /** Keeps such a head, or drops it. */
  async note(head: Bytes | null): Promise<void> {
    await this.store.write({ [UNANSWERED]: head });
  }

  /** Trains on the user's rows from the server's arrays on. Throws RefusedRoundError, PocketuneError and `signal.reason`. */
  async train(
    arrays: Arrays,
    config: Config,
    samples: readonly Sample[],
    kept: ReadonlyMap<string, Bytes>,
    signal?: AbortSignal,
  ): Promise<Trained> {
    const plan = this.plan(config);
    const taken = this.exchange.taken(arrays);
    const mine = this.exchange.personalOf(new Map([...this.built, ...kept]));
    await this.keepShared(new Map([...mine, ...taken]));
    await this.trainer.putTensors(
      new Map([...this.built, ...kept, ...this.exchange.begun(taken, plan.proximalMu, mine)]),
    );
    const begun = performance.now();
    const loss = await this.fit(samples, plan, signal);
    const state = await this.trainer.tensors();
    const all = this.exchange.sent(state, this.exchange.asksSlots(arrays.keys()));
    const sent = plan.clippingNorm === null ? all : clipped(all, arrays, plan.clippingNorm);
    await this.keepOwn(state);
    return {
      // In the server's order.
      arrays: new Map([...arrays.keys()].map((name) => [name, sent.get(name) as Tensor])),
      figures: { "num-examples": countOf(samples), loss, seconds: secondsSince(begun) },
      kept: new Map([...state].filter(([tensor]) => this.exchange.kept.has(tensor))),
    };
  }

  /** How good the server's arrays are on some rows, with what is personal. Throws as `train`. */
  async evaluate(
    arrays: Arrays,
    config: Config,
    samples: readonly Sample[],
    kept: ReadonlyMap<string, Bytes>,
  ): Promise<Figures> {
    this.plan(config);
    const mine = this.exchange.personalOf(new Map([...this.built, ...kept]));
    await this.keepShared(new Map([...mine, ...this.exchange.taken(arrays)]));
    const begun = performance.now();
    const { loss, accuracy } = await this.trainer.evaluate(samples);
    const judged = accuracy === null ? { loss } : { loss, accuracy };
    return { "num-examples": countOf(samples), ...judged, seconds: secondsSince(begun) };
  }

  /** What a client says of itself where it is asked. */
  describe(samples: readonly Sample[]): Record<string, string | bigint> {
    return { program: this.identity, "num-examples": countOf(samples), bytes: BigInt(this.bytes) };
  }

  /** Gives the trainer's memory back. */
  async close(): Promise<void> {
    await this.trainer.close();
  }

  /** The mean loss of the last epoch, while it trains, by the rows of each step. */
  private async fit(samples: readonly Sample[], plan: RoundPlan, signal?: AbortSignal): Promise<number> {
    const how: Plan = {
      epochs: plan.epochs,
      seed: plan.seed,
      checkpointEvery: 0,
      firstEpoch: (plan.round - 1) * plan.epochs,
      ...(plan.learningRate === null ? {} : { learningRate: plan.learningRate }),
      ...(plan.steps === null ? {} : { steps: plan.steps }),
    };
    let [epoch, total, weights] = [-1, 0, 0];
    for await (const event of this.trainer.fit(samples, how, signal ? { signal } : {})) {
      if (event.kind === "diverged") throw new DivergedError(event.why);
      if (event.kind !== "step") continue;
      if (event.epoch !== epoch) [total, weights] = [0, 0];
      epoch = event.epoch;
      total += event.loss * event.weight;
      weights += event.weight;
      // Lets in signs of life: a step in WebAssembly gives nobody else a turn.
      await new Promise((resolve) => setTimeout(resolve));
    }
    return total / weights;
  }

  private async keepShared(tensors: ReadonlyMap<string, Bytes>): Promise<void> {
    await this.trainer.putTensors(new Map([...this.built, ...tensors]));
    await this.store.write({ [SHARED]: await this.trainer.export() });
  }

  /** Keeps what was trained here, where something of it is personal; the next round, or the next tab, begins with that. */
  private async keepOwn(state: ReadonlyMap<string, Bytes>): Promise<void> {
    if (this.exchange.personal.size === 0) return;
    await this.store.write({ [OWN]: await this.trainer.export() });
    this.built = new Map([...this.built, ...this.exchange.personalOf(state)]);
  }

  private plan(config: Config): RoundPlan {
    const asked = config.get("program");
    if (!this.exchange.accepted.includes(asked)) {
      const what = asked === undefined ? "no program" : `the program ${String(asked).slice(0, SHOWN)}`;
      throw new RefusedRoundError(
        `the server's config names ${what}, and this client has ${this.identity.slice(0, SHOWN)}: both need the same ` +
          "build of the same model (config['program'] = pocketune.federated.identity(PROGRAM))",
      );
    }
    const plan = planOf(config, this.bounds);
    if (plan.proximalMu && !this.exchange.hasProximal) {
      throw new RefusedRoundError(
        "the server asks for FedProx's term (proximal-mu), and this program was built without it: build(..., proximal=0.01)",
      );
    }
    return plan;
  }
}

function countOf(samples: readonly Sample[]): bigint {
  return BigInt(samples.filter((sample) => sample.weight !== 0).length);
}

function secondsSince(begun: number): number {
  return (performance.now() - begun) / 1000;
}
