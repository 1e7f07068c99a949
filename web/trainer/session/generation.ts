import { DivergedError, InputError } from "../errors.ts";
import { type Manifest, product, rowSize } from "../manifest/manifest.ts";
import type { TensorSpec } from "../manifest/manifest-records.ts";
import type { Values } from "../program/samples.ts";
import type { Engine } from "./engine.ts";
import { zeros } from "./memory.ts";
import { Random } from "./random.ts";

const PREFILL = "prefill";
const DECODE = "decode";

/** The axis of tokens in what is kept: it is [1, layers, heads of keys, tokens, width of a head]. */
const TOKENS = 3;

const MAX_INT32 = 2 ** 31 - 1;

/** How the next token is chosen by its logits. */
export interface Sampling {
  /** 0 takes the likeliest token (the default); more draws among all, by their logits divided by it. */
  readonly temperature?: number;
  /** Draws among so many of the likeliest tokens; 40. */
  readonly topK?: number;
  /** And of these among the fewest whose probabilities add up to it; 0.95. */
  readonly topP?: number;
  /** Of the draws, a whole number; without one others each time. The same seed draws the same here and on the phone. */
  readonly seed?: number;
}

/** How a text is written on. */
export interface GenerateOptions {
  /** How many tokens to write at most; 64. It also ends where the rows of the program do. */
  readonly most?: number;
  /** Ids at which it ends; they are not given. */
  readonly stop?: Iterable<number>;
  readonly sampling?: Sampling;
  /** Ends it before the next call of the runtime; its reason is thrown. */
  readonly signal?: AbortSignal;
}

/** Chooses tokens one after the other. Throws InputError for a sampling that there is not. */
export class TokenChoice {
  private readonly temperature: number;
  private readonly topK: number;
  private readonly topP: number;
  private readonly random: Random;

  constructor({ temperature = 0, topK = 40, topP = 0.95, seed }: Sampling) {
    if (!(temperature >= 0) || !Number.isInteger(topK) || topK < 1 || !(topP > 0 && topP <= 1)) {
      refuse(
        "temperature is 0 or more, topK a whole number of 1 or more and topP above 0 and at most 1, not " +
          `${temperature}, ${topK} and ${topP}`,
      );
    }
    if (seed !== undefined && !Number.isSafeInteger(seed)) refuse(`seed must be a whole number, got ${seed}`);
    [this.temperature, this.topK, this.topP] = [temperature, topK, topP];
    this.random = new Random(seed === undefined ? anySeed() : BigInt(seed));
  }

  /** The token of some logits. Throws DivergedError: they are not finite. */
  next(logits: Values): number {
    if (!logits.every(Number.isFinite)) {
      throw new DivergedError("the logits of the next token are not finite: restore a saved state or reset");
    }
    if (this.temperature === 0) return logits.indexOf(mostOf(logits));
    const among = this.likeliest(logits);
    const largest = among[0]?.logit ?? 0;
    let sum = 0;
    const sums = among.map(({ logit }) => {
      sum += Math.exp((logit - largest) / this.temperature);
      return sum;
    });
    const few = sums.findIndex((each) => each >= this.topP * sum);
    const drawn = this.random.nextDouble() * (sums[few] ?? 0);
    const at = sums.findIndex((each, i) => i === few || drawn < each);
    return among[at]?.token ?? 0;
  }

  /** As many of the likeliest as are drawn among, the likeliest first, of equal ones the first. */
  private likeliest(logits: Values): { token: number; logit: number }[] {
    // Numbers alone are sorted many times quicker than by a comparison, and a vocabulary has 100 000 and more.
    const least = logits.slice().sort()[Math.max(0, logits.length - this.topK)] ?? 0;
    const kept: { token: number; logit: number }[] = [];
    logits.forEach((logit, token) => {
      if (logit >= least) kept.push({ token, logit });
    });
    return kept.sort((a, b) => b.logit - a.logit || a.token - b.token).slice(0, this.topK);
  }
}

/**
 * A text that a program reads: the keys and values of its tokens. Nothing of it stays in the runtime's memory between two
 * calls.
 */
export class KeptText {
  private readonly sizes: Readonly<Record<string, number>>;
  private readonly kept: TensorSpec;
  private readonly keys: Values;
  private readonly values: Values;
  private position = 0;

  /** Throws InputError: the program has not the signatures. */
  constructor(
    private readonly manifest: Manifest,
    private readonly engine: Engine,
  ) {
    this.sizes = { [DECODE]: rowSize(this.input(DECODE, "ids")), [PREFILL]: rowSize(this.input(PREFILL, "ids")) };
    this.kept = this.input(DECODE, "kept_keys");
    this.keys = zeros("float32", product(this.kept.shape));
    this.values = zeros("float32", product(this.kept.shape));
  }

  /** Tokens that it may have. */
  private get length(): number {
    return this.kept.shape[TOKENS] ?? 0;
  }

  /** How many tokens can be written behind so many: the last one is given, and not read. */
  room(tokens: number): number {
    return this.length - tokens + 1;
  }

  /** A copy of the ids to continue. Throws InputError where they are none. */
  checked(ids: ArrayLike<number>): Int32Array {
    const all = Array.from(ids);
    if (all.length === 0) refuse("ids: there are none; pass one or more to continue");
    if (all.length > this.length) {
      refuse(
        `ids: ${all.length} tokens are too many to continue: a row of this program holds ${this.length}; build it with ` +
          "a larger length, or leave tokens out",
      );
    }
    const [labels] = this.manifest.targetLabels.values();
    const last = labels?.count ? labels.count - 1 : MAX_INT32;
    const bad = all.find((id) => !Number.isInteger(id) || id < 0 || id > last);
    if (bad !== undefined)
      refuse(`ids: ${bad} is no whole number from 0 to ${last}: the tokenizer is that of another model`);
    return Int32Array.from(all);
  }

  /** Reads tokens behind the others, `between` the calls; gives the logits of the one that follows them. */
  async read(ids: Int32Array, between: () => void): Promise<Values> {
    let logits: Values = new Float32Array();
    for (let start = 0; start < ids.length; ) {
      between();
      const name = ids.length - start === 1 ? DECODE : PREFILL;
      const part = ids.slice(start, start + (this.sizes[name] ?? 0));
      logits = await this.call(name, part);
      start += part.length;
    }
    return logits;
  }

  private async call(name: string, ids: Int32Array): Promise<Values> {
    const size = this.sizes[name] ?? 0;
    const padded = new Int32Array(size);
    padded.set(ids);
    const found = await this.engine.forward(
      name,
      new Map<string, Values>([
        ["ids", padded],
        ["position", Int32Array.of(this.position)],
        ["count", Int32Array.of(ids.length)],
        ["kept_keys", this.keys],
        ["kept_values", this.values],
      ]),
    );
    const given = (output: string) => found.get(output) ?? cannot();
    this.keep(given("keys"), this.keys, ids.length, size);
    this.keep(given("values"), this.values, ids.length, size);
    this.position += ids.length;
    return given("logits");
  }

  /** Puts the first `count` of `size` tokens, of each layer and head, behind those that are there. */
  private keep(from: Values, to: Values, count: number, size: number): void {
    const width = this.kept.shape.at(-1) ?? 0;
    for (let head = 0; head < to.length / (this.length * width); head++) {
      const first = head * size * width;
      to.set(from.subarray(first, first + count * width), (head * this.length + this.position) * width);
    }
  }

  private input(signature: string, name: string): TensorSpec {
    const found = this.manifest.find(signature)?.inputs.find((spec) => spec.name === name);
    return found ?? cannot();
  }
}

/** How many tokens are written at most. Throws InputError. */
export function checkedMost(most: number): number {
  if (!Number.isSafeInteger(most) || most < 0) refuse(`most is a whole number of tokens, 0 or more, not ${most}`);
  return most;
}

function mostOf(logits: Values): number {
  let most = Number.NEGATIVE_INFINITY;
  for (const logit of logits) if (logit > most) most = logit;
  return most;
}

function anySeed(): bigint {
  return crypto.getRandomValues(new BigUint64Array(1))[0] ?? 0n;
}

function cannot(): never {
  refuse("this program cannot generate: build it with --signatures train,infer,generate");
}

function refuse(problem: string): never {
  throw new InputError(problem);
}
