import { RefusedRoundError } from "./errors.ts";
import type { Entry } from "./values.ts";

/** What a server may ask at most of this client. The client's owner sets them, and no message changes them. */
export interface Bounds {
  /** Of a round; 10. */
  readonly epochs?: number;
  /** Of a round; 10,000. */
  readonly steps?: number;
  /** Of a step; 1. */
  readonly learningRate?: number;
  /** Of FedProx; 100. */
  readonly proximalMu?: number;
  /** The largest L2 norm of all trained arrays together; else it goes by what was built. */
  readonly norm?: number;
}

/** What a client does in a round, every value checked. */
export interface RoundPlan {
  /** Passes over the client's rows. */
  readonly epochs: number;
  /** After so many it ends, wherever it is; null: after the epochs. */
  readonly steps: number | null;
  /** Null: that of the program. */
  readonly learningRate: number | null;
  /** Of the order of rows. */
  readonly seed: number;
  /** Of the term that holds the weights near those of the server; null: that of the program. */
  readonly proximalMu: number | null;
  /** The largest L2 norm of the change that is sent; null: any. */
  readonly clippingNorm: number | null;
  /** Of the run, from 1; epochs are numbered through, so that the order differs by round. */
  readonly round: number;
}

const MOST_ROUNDS = 2 ** 20;
const MOST_SEED = 2 ** 31 - 1;
/** The entry of a config that the client reads. */
const PROGRAM = "program";

/** Bounds with nothing left out but the norm. Throws RangeError for one that nothing is within. */
export function checkedBounds(given: Bounds): Required<Omit<Bounds, "norm">> & { readonly norm: number | undefined } {
  const bounds = { epochs: 10, steps: 10_000, learningRate: 1, proximalMu: 100, norm: undefined, ...given };
  for (const [name, bound] of Object.entries(bounds)) {
    const least = name === "epochs" || name === "steps" ? 1 : 0;
    if (bound !== undefined && !(Number.isFinite(bound) && bound >= least)) {
      throw new RangeError(`the bound of ${name} is ${bound}: nothing is within it`);
    }
  }
  return bounds;
}

/** The plan in a config. Throws RefusedRoundError for a value that is none or beyond its bound, and an unknown entry. */
export function planOf(config: ReadonlyMap<string, Entry>, given: Bounds): RoundPlan {
  const bounds = checkedBounds(given);
  const entries = new Entries(config);
  const plan = {
    epochs: entries.whole("epochs", 1, bounds.epochs) ?? 1,
    steps: entries.whole("steps", 1, bounds.steps),
    learningRate: entries.number("learning-rate", bounds.learningRate),
    seed: entries.whole("seed", 0, MOST_SEED) ?? 0,
    proximalMu: entries.number("proximal-mu", bounds.proximalMu),
    clippingNorm: entries.number("clipping_norm", Number.MAX_VALUE),
    round: entries.whole("server-round", 1, MOST_ROUNDS) ?? 1,
  };
  const other = [...config.keys()].find((name) => !entries.known.includes(name) && name !== PROGRAM);
  if (other === undefined) return plan;
  throw new RefusedRoundError(`the config has '${other}', which is not known: ${entries.known.join(", ")}.`);
}

/** The numbers of a config. */
class Entries {
  /** What was asked for so far. */
  readonly known: string[] = [];

  constructor(private readonly config: ReadonlyMap<string, Entry>) {}

  whole(name: string, least: number, most: number): number | null {
    const value = this.entry(name);
    if (value === undefined) return null;
    if (typeof value !== "bigint") throw new RefusedRoundError(`${name} is ${value}, and expected is a whole number`);
    if (value < BigInt(least) || value > BigInt(Math.floor(most))) this.refuse(name, value, least, most);
    return Number(value);
  }

  number(name: string, most: number): number | null {
    const value = this.entry(name);
    if (value === undefined) return null;
    const number = typeof value === "bigint" || typeof value === "number" ? Number(value) : Number.NaN;
    if (!Number.isFinite(number)) throw new RefusedRoundError(`${name} is ${value}, and expected is a number`);
    if (number < 0 || number > most) this.refuse(name, number, 0, most);
    return number;
  }

  private entry(name: string): Entry | undefined {
    this.known.push(name);
    return this.config.get(name);
  }

  private refuse(name: string, value: number | bigint, least: number, most: number): never {
    throw new RefusedRoundError(`${name} is ${value}, and the owner of this client allows ${least} to ${most}`);
  }
}
