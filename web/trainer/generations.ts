import { type Bytes, utf8 } from "./bytes.ts";
import {
  DamagedStateError,
  ForeignStateError,
  NoStateError,
  PocketuneError,
  StateError,
  StateVersionError,
  StorageError,
} from "./errors.ts";
import type { Manifest } from "./manifest.ts";
import { largestFile, pack, type State, type StoredTensor, startsLikeOne, unpack } from "./state-file.ts";
import type { Store } from "./store.ts";
import { decode, FormatError, integer, record, string } from "./strict-json.ts";

/** The newest generation; the one before is `NAME.previous`. */
const NAME = "personal.state";
const OLDER = `${NAME}.previous`;
const TRAINING = `${NAME}.training`;
const NOTE = `${TRAINING}.json`;

/** What a file holds: a good state of the program, or what is wrong with it. */
interface Found {
  readonly bytes: Bytes;
  readonly state: State | null;
  readonly problem: StateError | null;
  /** Whether it was meant to be a state. */
  readonly isOurs: boolean;
}

/** A state that was read; `lost`: why the newest one could not be used, null when it could. */
export interface Loaded {
  readonly state: State;
  readonly lost: string | null;
}

/** A state and the one saved before it (docs/state-file.md). A store writes both at once, so none is ever half there. */
export class TwoGenerations {
  constructor(
    private readonly store: Store,
    private readonly manifest: Manifest,
    private readonly most: number,
  ) {}

  /** The newest good generation. Throws StateError and StorageError. */
  async load(): Promise<Loaded> {
    const newest = await this.find(NAME);
    if (newest?.state) return { state: newest.state, lost: null };
    const problem = newest?.problem;
    if (problem instanceof ForeignStateError || problem instanceof StateVersionError) throw problem;
    const previous = await this.find(OLDER);
    const reason = problem?.message ?? "it is missing";
    if (previous?.state) return { state: previous.state, lost: reason };
    if (!newest && !previous) throw new NoStateError("nothing was saved yet");
    throw new DamagedStateError(`${NAME}: ${reason}; ${OLDER}: ${previous?.problem?.message ?? "it is missing"}`);
  }

  /** The generation before the newest; null when there is none. Throws StateError when it is not good. */
  async previous(): Promise<State | null> {
    const found = await this.find(OLDER);
    if (found?.problem) throw found.problem;
    return found?.state ?? null;
  }

  /**
   * Writes the next generation and returns its number. Throws StateError: there is something that is no state of this
   * program, and is not overwritten; DivergedError: a tensor is not finite; StorageError: the old state still stands.
   */
  async save(tensors: StoredTensor[]): Promise<number> {
    const [newest, previous] = [await this.find(NAME), await this.find(OLDER)];
    checkReplaceable(newest, previous);
    const generation = 1 + Math.max(newest?.state?.generation ?? 0, previous?.state?.generation ?? 0);
    const file = await pack({ program: this.manifest.graphHash, generation, tensors });
    checkFits(file, this.most);
    // A damaged file must not take the place of a good older one.
    await this.store.write(newest?.state ? { [NAME]: file, [OLDER]: newest.bytes } : { [NAME]: file });
    return generation;
  }

  /** Throws StateError where `save` would. */
  async checkReplaceable(): Promise<void> {
    checkReplaceable(await this.find(NAME), await this.find(OLDER));
  }

  /** Moves both generations out of the way, whatever they are, so that the next `save` begins anew. */
  async setAside(): Promise<void> {
    const changes: Record<string, Bytes | null> = {};
    for (const name of [NAME, OLDER]) {
      const file = await this.store.read(name);
      if (file) Object.assign(changes, { [name]: null, [`${name}.unusable`]: file });
    }
    await this.store.write(changes);
  }

  private async find(name: string): Promise<Found | null> {
    const bytes = await this.store.read(name);
    if (!bytes) return null;
    const isOurs = bytes.length === 0 || startsLikeOne(bytes);
    try {
      if (bytes.length > largestFile(this.manifest)) throw new DamagedStateError("it is too large for this program");
      return { bytes, state: await unpack(bytes, this.manifest.graphHash), problem: null, isOurs };
    } catch (error) {
      if (error instanceof StateError) return { bytes, state: null, problem: error, isOurs };
      throw error;
    }
  }
}

function checkReplaceable(newest: Found | null, previous: Found | null): void {
  const problem = newest?.problem;
  if (!problem) return;
  const isReplaced = problem instanceof DamagedStateError && (previous?.state || newest.isOurs);
  if (!isReplaced) throw problem;
}

/** The new file and the two that there are. */
function checkFits(file: Bytes, most: number): void {
  if (3 * file.length > most) {
    throw new StorageError(`the state is not written: it needs three times ${file.length} bytes of ${most} allowed`);
  }
}

/** How far an unfinished training had come. */
export interface Progress {
  readonly steps: number;
  readonly tensors: StoredTensor[];
}

const note = record({ training: string, steps: integer });

/**
 * The state of an unfinished training, and in a file beside it which training that is and how far it is. Whatever is
 * wrong with them, a training can start anew.
 */
export class Checkpoints {
  constructor(
    private readonly store: Store,
    private readonly manifest: Manifest,
    private readonly most: number,
  ) {}

  /** Saves `steps` steps of `training`, a digest of all that decides its course. */
  async save(training: string, steps: number, tensors: StoredTensor[]): Promise<void> {
    const file = await pack({ program: this.manifest.graphHash, generation: 1, tensors });
    checkFits(file, this.most);
    await this.store.write({ [TRAINING]: file, [NOTE]: utf8(JSON.stringify({ training, steps })) });
  }

  /** How far `training` had come; null when there is nothing of it. */
  async load(training: string): Promise<Progress | null> {
    try {
      const [text, file] = [await this.store.read(NOTE), await this.store.read(TRAINING)];
      if (!text || !file || file.length > largestFile(this.manifest)) return null;
      const found = decode(note, text, "note");
      if (found.training !== training || found.steps < 1) return null;
      return { steps: found.steps, tensors: (await unpack(file, this.manifest.graphHash)).tensors };
    } catch (error) {
      if (error instanceof PocketuneError || error instanceof FormatError) return null;
      throw error;
    }
  }

  /** Removes all of it. */
  async delete(): Promise<void> {
    await this.store.write({ [TRAINING]: null, [NOTE]: null });
  }
}
