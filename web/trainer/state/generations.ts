import { type Bytes, utf8 } from "../bytes.ts";
import {
  DamagedStateError,
  ForeignStateError,
  NoStateError,
  PocketuneError,
  StateError,
  StateVersionError,
  StorageError,
} from "../errors.ts";
import { decode, FormatError, integer, record, string } from "../manifest/strict-json.ts";
import type { StateSpec, StoredTensor } from "../program/state-spec.ts";
import { type Adopt, type Compared, compare, differences, saysLayouts } from "./interchange.ts";
import { largestFile, pack, startsLikeOne, unpack } from "./state-file.ts";
import type { Store } from "./store.ts";

/** The newest generation; the one before is `NAME.previous`. */
const NAME = "personal.state";
const OLDER = `${NAME}.previous`;
const TRAINING = `${NAME}.training`;
const NOTE = `${TRAINING}.json`;

/** A good state of a file, and what the program makes of it; `tensors` as the program stores them. */
export interface Taken {
  readonly program: string;
  readonly generation: number;
  readonly tensors: StoredTensor[];
  readonly compared: Compared;
}

/** What a file holds: a good state of the program, or what is wrong with it. */
interface Found {
  readonly bytes: Bytes;
  readonly state: Taken | null;
  readonly problem: StateError | null;
  /** Whether it was meant to be a state. */
  readonly isOurs: boolean;
}

/** A state that was read; `lost`: why the newest one could not be used, null when it could. */
export interface Loaded {
  readonly state: Taken;
  readonly lost: string | null;
}

/** A state and the one saved before it (docs/state-file.md). A store writes both at once, so none is ever half there. */
export class TwoGenerations {
  /** Graph hashes of other programs, parts of whose states were taken over: these states may be overwritten. */
  private readonly adopted = new Set<string>();

  constructor(
    private readonly store: Store,
    private readonly states: StateSpec,
    private readonly most: number,
  ) {}

  /** The newest good generation; with `adopt` that of whatever program. Throws StateError and StorageError. */
  async load(adopt?: Adopt): Promise<Loaded> {
    const loaded = await this.newest(adopt !== undefined);
    this.adopted.add(loaded.state.program);
    return loaded;
  }

  private async newest(takesAny: boolean): Promise<Loaded> {
    const newest = await this.find(NAME, takesAny);
    if (newest?.state) return { state: newest.state, lost: null };
    const problem = newest?.problem;
    if (problem instanceof ForeignStateError || problem instanceof StateVersionError) throw problem;
    const previous = await this.find(OLDER, takesAny);
    const reason = problem?.message ?? "it is missing";
    if (previous?.state) return { state: previous.state, lost: reason };
    if (!newest && !previous) throw new NoStateError("nothing was saved yet");
    throw new DamagedStateError(`${NAME}: ${reason}; ${OLDER}: ${previous?.problem?.message ?? "it is missing"}`);
  }

  /**
   * The generation before the newest; null when there is none, or one of another program, parts of which were taken over.
   * Throws StateError when it is not good.
   */
  async previous(): Promise<Taken | null> {
    const found = await this.find(OLDER);
    if (found?.problem instanceof ForeignStateError) return null;
    if (found?.problem) throw found.problem;
    return found?.state?.compared.differences.length === 0 ? found.state : null;
  }

  /**
   * Writes the next generation and returns its number. Throws StateError: there is something that is no state of this
   * program, and is not overwritten; DivergedError: a tensor is not finite; StorageError: the old state still stands.
   */
  async save(tensors: StoredTensor[]): Promise<number> {
    const [newest, previous] = [await this.find(NAME), await this.find(OLDER)];
    checkReplaceable(newest, previous);
    const generation = 1 + Math.max(newest?.state?.generation ?? 0, previous?.state?.generation ?? 0);
    const file = await pack({ spec: this.states, generation, tensors });
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

  private async find(name: string, takesAny = false): Promise<Found | null> {
    const bytes = await this.store.read(name);
    if (!bytes) return null;
    const isOurs = bytes.length === 0 || startsLikeOne(bytes);
    try {
      const isAny = (program: string) => takesAny || this.adopted.has(program);
      return { bytes, state: await taken(bytes, this.states, isAny), problem: null, isOurs };
    } catch (error) {
      if (error instanceof StateError) return { bytes, state: null, problem: error, isOurs };
      throw error;
    }
  }
}

/**
 * A good state in the bytes of a file, and what the program makes of it. Throws StateError; where `isAny` says so of its
 * program, not because it is another one.
 */
export async function taken(file: Bytes, states: StateSpec, isAny: (program: string) => boolean): Promise<Taken> {
  const isTooLarge = file.length > largestFile(states);
  const state = await unpack(file, (spec) => {
    if (isAny(spec.program)) return;
    // Of an older version it shows in the tensors how they are laid out.
    if (saysLayouts(spec)) checkOwn(differences(spec, states));
    else if (spec.program !== states.program) checkOwn(isTooLarge ? ["it is larger than any of this program's"] : []);
    if (isTooLarge) throw new DamagedStateError("it is too large for this program");
  });
  const { program } = state.spec;
  const compared = compare(state, states);
  const { differences: said, left, tensors, hasWeights } = compared;
  if (!isAny(program)) checkOwn(said);
  if (said.length === 0 && left.length > 0) {
    throw new DamagedStateError("the tensors of the state are not those of this program");
  }
  if (!hasWeights) {
    throw new ForeignStateError(`no weight of it matches one of this program: ${said.join("; ")}`);
  }
  return { program, generation: state.generation, tensors, compared };
}

function checkOwn(said: string[]): void {
  if (said.length === 0) return;
  const reasons = said.join("; ");
  throw new ForeignStateError(
    `it belongs to another program: ${reasons}. Restored with adopt 'matching' it gives what fits`,
  );
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
    private readonly states: StateSpec,
    private readonly most: number,
  ) {}

  /** Saves `steps` steps of `training`, a digest of all that decides its course. */
  async save(training: string, steps: number, tensors: StoredTensor[]): Promise<void> {
    const file = await pack({ spec: this.states, generation: 1, tensors });
    checkFits(file, this.most);
    await this.store.write({ [TRAINING]: file, [NOTE]: utf8(JSON.stringify({ training, steps })) });
  }

  /** How far `training` had come; null when there is nothing of it. */
  async load(training: string): Promise<Progress | null> {
    try {
      const [text, file] = [await this.store.read(NOTE), await this.store.read(TRAINING)];
      if (!text || !file) return null;
      const found = decode(note, text, "note");
      if (found.training !== training || found.steps < 1) return null;
      return { steps: found.steps, tensors: (await taken(file, this.states, () => false)).tensors };
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
