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

/** What a training answers; `slots` are the optimizer's, for the next round of the same run. */
export interface Trained {
  readonly arrays: Arrays;
  readonly figures: Figures;
  readonly slots: ReadonlyMap<string, Bytes>;
}

const SHARED = "shared.state";
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
    private readonly built: ReadonlyMap<string, Bytes>,
    /** What travels. */
    readonly exchange: Exchange,
  ) {}

  /**
   * Opens a program. `store` keeps the shared state: one of its own, not that of the user's state. Throws InputError: it is none
   * that several can train; RuntimeFailedError: it is not taken; RangeError: nothing is within the bounds.
   */
  static async open(
    program: Program,
    runtime: RuntimeFactory,
    store: Store,
    bounds: Bounds = {},
  ): Promise<Participant> {
    const exchange = await Exchange.of(program, checkedBounds(bounds).norm);
    const trainer = await Trainer.open(program, runtime, new MemoryStore());
    return new Participant(trainer, store, bounds, await trainer.tensors(), exchange);
  }

  /** What a server's config must name as `program`. */
  get identity(): string {
    return this.exchange.identity;
  }

  /** Bytes of numbers that leave the device in a round. */
  get bytes(): number {
    return this.exchange.bytes(false);
  }

  /** The arrays of the server as they came last, a state file that any trainer of the program restores; null: none came. */
  async shared(): Promise<Bytes | null> {
    return await this.store.read(SHARED);
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
    slots: ReadonlyMap<string, Bytes>,
    signal?: AbortSignal,
  ): Promise<Trained> {
    const plan = this.plan(config);
    const taken = this.exchange.taken(arrays);
    await this.keepShared(taken);
    await this.trainer.putTensors(new Map([...this.built, ...slots, ...this.exchange.begun(taken, plan.proximalMu)]));
    const begun = performance.now();
    const loss = await this.fit(samples, plan, signal);
    const state = await this.trainer.tensors();
    const all = this.exchange.sent(state, this.exchange.asksSlots(arrays.keys()));
    const sent = plan.clippingNorm === null ? all : clipped(all, arrays, plan.clippingNorm);
    const own = [...this.exchange.slots.values()].map(({ tensor }): [string, Bytes] => [
      tensor,
      state.get(tensor) ?? new Uint8Array(),
    ]);
    return {
      // In the server's order.
      arrays: new Map([...arrays.keys()].map((name) => [name, sent.get(name) as Tensor])),
      figures: { "num-examples": countOf(samples), loss, seconds: secondsSince(begun) },
      slots: new Map(own),
    };
  }

  /** How good the server's arrays are on some rows. Throws as `train`. */
  async evaluate(arrays: Arrays, config: Config, samples: readonly Sample[]): Promise<Figures> {
    this.plan(config);
    await this.keepShared(this.exchange.taken(arrays));
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

  /** The mean loss of the last epoch, while it trains. */
  private async fit(samples: readonly Sample[], plan: RoundPlan, signal?: AbortSignal): Promise<number> {
    const how: Plan = {
      epochs: plan.epochs,
      seed: plan.seed,
      checkpointEvery: 0,
      firstEpoch: (plan.round - 1) * plan.epochs,
      ...(plan.learningRate === null ? {} : { learningRate: plan.learningRate }),
      ...(plan.steps === null ? {} : { steps: plan.steps }),
    };
    let [epoch, losses]: [number, number[]] = [-1, []];
    for await (const event of this.trainer.fit(samples, how, signal ? { signal } : {})) {
      if (event.kind === "diverged") throw new DivergedError(event.why);
      if (event.kind !== "step") continue;
      if (event.epoch !== epoch) losses = [];
      epoch = event.epoch;
      losses.push(event.loss);
      // Lets in signs of life: a step in WebAssembly gives nobody else a turn.
      await new Promise((resolve) => setTimeout(resolve));
    }
    return losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
  }

  private async keepShared(taken: ReadonlyMap<string, Bytes>): Promise<void> {
    await this.trainer.putTensors(new Map([...this.built, ...taken]));
    await this.store.write({ [SHARED]: await this.trainer.export() });
  }

  private plan(config: Config): RoundPlan {
    const asked = config.get("program");
    if (asked !== this.identity) {
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
