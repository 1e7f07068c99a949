import { areEqual, type Bytes, isZero } from "../bytes.ts";
import { InputError, ReplayError } from "../errors.ts";
import type { Manifest } from "../manifest/manifest.ts";
import type { Program } from "../program/program.ts";
import { type Sample, weightOf } from "../program/samples.ts";
import type { WholePlan } from "../session/plan.ts";
import type { Store } from "../state/store.ts";
import { type Tag, tagsOf, UNKNOWN } from "./class-tags.ts";
import {
  arraysOf,
  type Contents,
  forgotten,
  type Keeps,
  MILLION,
  type Offered,
  offer,
  type Part,
  tagged,
} from "./contents.ts";
import { begin, MOST_BYTES, packMemory, unpackMemory } from "./memory-file.ts";
import { RowKind } from "./row-kind.ts";

const [LIMIT, HELD_OUT, MOST_HELD_OUT, SHARE] = [4 << 20, 0.1, 0.5, 0.5];

/** So many bytes of a file, its digest among them, tell whether it is the one that was read. */
const STAMP = 48;

/** What a memory is begun with; what a file was begun with stays, and what is left out here is as it is there. */
export interface ReplayOptions {
  /** Of the file in the store; `replay.memory`. */
  readonly name?: string;
  /** Bytes of the file, at most; 4 MiB. */
  readonly limit?: number;
  /** Share of the rows that are kept aside, 0 to 0.5; 0.1. */
  readonly heldOut?: number;
  /** `inputs`. A trainer here trains on these. */
  readonly keeps?: Keeps;
  /** Of the draws; 0. */
  readonly seed?: number;
}

/**
 * Rows of earlier trainings in a file of bounded size, against forgetting (docs/replay-memory.md). `Trainer.fit` mixes them
 * in, and new ones enter when it is done. A share of the rows is kept aside and never trained on. The store writes the file
 * whole or not at all. One training at a time goes with a memory.
 */
export class ReplayMemory {
  private constructor(
    private readonly store: Store,
    /** Of the file in the store. */
    readonly name: string,
    private readonly kind: RowKind,
    private contents: Contents,
    private stamp: Bytes | null,
  ) {}

  /**
   * Opens a memory, or begins one. Throws ReplayError: the file is damaged or no memory, belongs to another program, or was
   * begun with other numbers; InputError: the limit has no room for a row, or the program cannot have one; StorageError.
   */
  static async open(store: Store, program: Program, options: ReplayOptions = {}): Promise<ReplayMemory> {
    checkOptions(options);
    const kind = await RowKind.of(program.manifest);
    const name = options.name ?? "replay.memory";
    const file = await store.read(name);
    if (!file) return new ReplayMemory(store, name, kind, begunWith(kind, options), null);
    try {
      const contents = await unpackMemory(file, (there) => {
        const difference = kind.difference(there);
        if (difference !== null) throw new ReplayError(`it belongs to another program: ${difference}`);
        checkWanted(there, options);
      });
      return new ReplayMemory(store, name, kind, contents, file.slice(0, STAMP));
    } catch (error) {
      throw error instanceof ReplayError ? new ReplayError(`${name}: ${error.message}`) : error;
    }
  }

  /** How many rows came, kept or not: those that come next are numbered from here. */
  get seen(): number {
    return this.contents.seen;
  }

  /** Bytes of the file, at most. */
  get limit(): number {
    return this.contents.limit;
  }

  /** What is kept to be replayed. */
  get keeps(): Keeps {
    return this.contents.keeps;
  }

  /** How many rows to be replayed there are of each label; of rows without labels all are of 0. */
  counts(): Map<number, number> {
    const counts = new Map<number, number>();
    const labels = [...this.contents.replay.reservoir.labels].sort((a, b) => a - b);
    for (const label of labels) counts.set(label, (counts.get(label) ?? 0) + 1);
    return counts;
  }

  /** The rows to be replayed. Throws InputError where features are kept. */
  replayed(): Sample[] {
    if (this.keeps !== "inputs") {
      throw new InputError(`${this.name} keeps features, and a training here takes inputs: begin a file of these`);
    }
    return this.samples(this.contents.replay);
  }

  /** The rows that were kept aside, for `evaluate` and `heldOut`. */
  heldOut(): Sample[] {
    return this.samples(this.contents.aside);
  }

  /**
   * Removes all rows of a label, as when its class is forgotten. Throws InputError for a label that there is not, StorageError
   * and ReplayError.
   */
  async forget(label: number): Promise<void> {
    this.checkLabel(label);
    await this.write(forgotten(this.contents, label));
  }

  /** Says that a label is of the same class as before, which has another name: its rows stay. Throws as `forget`. */
  async rename(label: number, name: string): Promise<void> {
    this.checkLabel(label);
    const [renamed = UNKNOWN] = await tagsOf([name]);
    const tags = this.contents.tags.map((tag, i) => (i === label ? renamed : tag));
    await this.write({ ...this.contents, tags });
  }

  /**
   * What a training with this memory goes through; nothing is written before `enter`. `names` are those of the classes by
   * label, null where the state keeps none. Throws ReplayError for a memory of another program or of rows whose class is
   * another now, and InputError where no sample is left to train on.
   */
  async curated(
    manifest: Manifest,
    names: readonly (string | null)[] | null,
    samples: readonly Sample[],
    plan: WholePlan,
    heldOut: readonly Sample[],
  ): Promise<Curated> {
    await this.checkBelongsTo(manifest);
    const tags = await this.checkedTags(names);
    const replayed = this.replayed();
    const offered = this.offered(samples);
    const trained = samples.filter((_, row) => !offered.isAside[row]);
    if (!trained.some((sample) => weightOf(sample) > 0)) {
      throw new InputError(
        `samples: all ${samples.length} are kept aside by the memory, and none is left to train on: pass more in a call, ` +
          "or add them with remember",
      );
    }
    const { samples: others = [], share = SHARE } = plan.replay ?? {};
    return {
      samples: trained,
      plan: { ...plan, replay: { samples: [...others, ...replayed], share } },
      heldOut: [...heldOut, ...this.heldOut()],
      enter: () => this.enter(offered, samples, tags),
    };
  }

  /** Adds checked rows without a training. Throws as `Trainer.remember`. */
  async add(manifest: Manifest, names: readonly (string | null)[] | null, samples: readonly Sample[]): Promise<void> {
    await this.checkBelongsTo(manifest);
    const tags = await this.checkedTags(names);
    this.replayed();
    await this.enter(this.offered(samples), samples, tags);
  }

  private checkLabel(label: number): void {
    const most = this.contents.tags.length - 1;
    if (Number.isInteger(label) && label >= 0 && label <= most) return;
    throw new InputError(`label: a whole number from 0 to ${most}, the labels of ${this.name}, not ${label}`);
  }

  /** The tags of all labels now. Throws ReplayError where rows are of another class than the one that has their label. */
  private async checkedTags(names: readonly (string | null)[] | null): Promise<readonly Tag[]> {
    if (names?.length !== this.contents.tags.length) return this.contents.tags;
    const tags = await tagsOf(names);
    for (const label of new Set([this.contents.replay, this.contents.aside].flatMap((it) => it.reservoir.labels))) {
      const [before = UNKNOWN, now = UNKNOWN] = [this.contents.tags[label], tags[label]];
      if (isZero(before) || areEqual(before, now)) continue;
      throw new ReplayError(
        `${this.name}: its rows of label ${label} came under another name, and the label is of ` +
          `${names[label] ? `'${names[label]}'` : "no class"} now. forget(${label}) removes them; rename(${label}, name) ` +
          "keeps them, if it is the class of before under another name",
      );
    }
    return tags;
  }

  private async checkBelongsTo(manifest: Manifest): Promise<void> {
    const difference = (await RowKind.of(manifest)).difference(this.contents);
    if (difference !== null) throw new ReplayError(`${this.name}: it belongs to another program: ${difference}`);
  }

  private offered(samples: readonly Sample[]): Offered {
    return offer(
      this.contents,
      samples.map((sample) => this.kind.labelOf(sample)),
    );
  }

  private async enter(offered: Offered, samples: readonly Sample[], tags: readonly Tag[]): Promise<void> {
    if (offered.before !== this.contents) {
      throw new ReplayError(`${this.name}: rows came while others were on their way`);
    }
    const arrays = (row: number) => this.kind.arrays(samples[row] as Sample);
    await this.write(tagged(offered.contents(arrays, arrays), tags));
  }

  private samples(part: Part): Sample[] {
    return part.reservoir.labels.map((_, row) => this.kind.sample(arraysOf(part, row)));
  }

  private async write(contents: Contents): Promise<void> {
    const file = await packMemory(contents);
    const there = (await this.store.read(this.name))?.slice(0, STAMP) ?? null;
    if (!(there && this.stamp ? areEqual(there, this.stamp) : there === this.stamp)) {
      throw new ReplayError(
        `${this.name} is not as it was when it was opened: another wrote to it, or removed it. Open it again`,
      );
    }
    await this.store.write({ [this.name]: file });
    this.contents = contents;
    this.stamp = file.slice(0, STAMP);
  }
}

/** What a training goes through: with a memory fewer samples, more to replay, and more that are held out. */
export interface Curated {
  readonly samples: readonly Sample[];
  readonly plan: WholePlan;
  readonly heldOut: readonly Sample[];
  /** Called at its end, for the samples that enter the memory. */
  readonly enter: () => Promise<void>;
}

function begunWith(
  kind: RowKind,
  { limit = LIMIT, heldOut = HELD_OUT, keeps = "inputs", seed = 0 }: ReplayOptions,
): Contents {
  const begun = { owner: kind.owner, keeps, limit, heldOut: millionths(heldOut), seed };
  return begin(begun, ...kind.parts(keeps, begun.heldOut > 0));
}

function checkOptions({ limit = 0, heldOut = 0, seed = 0 }: ReplayOptions): void {
  if (!Number.isInteger(limit) || limit < 0 || limit > MOST_BYTES) {
    throw new InputError(`limit: bytes from 0 to ${MOST_BYTES}, not ${limit}`);
  }
  if (!(heldOut >= 0 && heldOut <= MOST_HELD_OUT)) {
    throw new InputError(`heldOut: a share from 0 to ${MOST_HELD_OUT}, not ${heldOut}`);
  }
  if (!Number.isSafeInteger(seed) || seed < 0) throw new InputError(`seed: from 0 to 2^53 - 1, not ${seed}`);
}

function checkWanted(there: Contents, { limit, heldOut, keeps, seed }: ReplayOptions): void {
  const wanted = { limit, heldOut: heldOut === undefined ? undefined : millionths(heldOut), keeps, seed };
  for (const [name, value] of Object.entries(wanted)) {
    const had = there[name as keyof typeof wanted];
    if (value === undefined || value === had) continue;
    const [one, other] = name === "heldOut" ? [Number(had) / MILLION, heldOut] : [had, value];
    throw new ReplayError(
      `it was begun with ${name} ${one}, not ${other}: open it without that, or begin another file`,
    );
  }
}

function millionths(share: number): number {
  return Math.floor(share * MILLION + 0.5);
}
