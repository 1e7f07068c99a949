import { type Bytes, utf8 } from "../trainer/bytes.ts";
import { ofRole } from "../trainer/manifest.ts";
import { decode, FormatError } from "../trainer/strict-json.ts";
import {
  BrowserStore,
  BusyError,
  DamagedProgramError,
  DivergedError,
  ForeignStateError,
  InputError,
  labelled,
  liteRt,
  MemoryStore,
  messageOf,
  NewerProgramError,
  NoStateError,
  PocketuneError,
  Program,
  ProgramError,
  RuntimeFailedError,
  type Sample,
  StateError,
  StateVersionError,
  StorageError,
  type Store,
  type TrainEvent,
  Trainer,
} from "../trainer.ts";
import { builtInSamples, checkDigest, checkFits, type Description, FILE, readDescription } from "./description.ts";
import { EMPTY, type Notes, notes } from "./notes.ts";
import { type Coach, Failure, type InUse, type Lesson, type Logits, type Opening, type Problem } from "./protocol.ts";
import { compileLiteRt } from "./unpack.ts";

const STORE = "digits";
const NOTES = "notes.json";
const CHECKPOINT_EVERY = 30;
const PROBES = 16;

interface Loaded {
  readonly description: Description;
  readonly replay: Sample[];
  readonly personal: Trainer;
  readonly original: Trainer;
  readonly store: Store;
}

/** Trains the page's program. One trainer holds the person's model, a second one the model as it was built. */
export class TrainerCoach implements Coach {
  private loaded: Loaded | undefined;
  private cancelling = new AbortController();

  constructor(private readonly tell: (event: TrainEvent) => void) {}

  async open(wait: boolean): Promise<Opening> {
    this.loaded ??= await this.load(wait);
    const { description, personal, store } = this.loaded;
    const problems: Problem[] = [];
    const generation = await this.restored(problems);
    const noted = await this.notes(store, problems);
    return {
      description,
      report: personal.report,
      stateBytes: personal.program.manifest.stateBytes,
      inUse: { personal: !(await this.isAsBuilt()), generation },
      notes: noted,
      problems,
    };
  }

  async saveNotes(notes: Notes): Promise<void> {
    await this.opened.store.write({ [NOTES]: utf8(JSON.stringify(notes)) });
  }

  async logits(images: readonly Float32Array[]): Promise<Logits> {
    const [original, personal] = [this.opened.original, this.opened.personal];
    return { original: await logitsOf(original, images), personal: await logitsOf(personal, images) };
  }

  async train(lessons: readonly Lesson[], judged: readonly Lesson[]): Promise<boolean> {
    const { description, personal, replay } = this.opened;
    const { recipe } = description;
    const plan = {
      epochs: recipe.epochs,
      learningRate: recipe.learning_rate,
      replay: { samples: replay, share: recipe.replay },
      checkpointEvery: CHECKPOINT_EVERY,
    };
    const [samples, heldOut] = [lessons, judged].map((each) => each.map(({ image, label }) => labelled(image, label)));
    this.cancelling = new AbortController();
    const { signal } = this.cancelling;
    personal.resume();
    try {
      for await (const event of personal.fit(samples ?? [], plan, { heldOut: heldOut ?? [], signal })) {
        this.tell(event);
        // Lets in what the page asks meanwhile: a step in WebAssembly gives nobody else a turn.
        await new Promise((resolve) => setTimeout(resolve));
      }
      return true;
    } catch (error) {
      if (!signal.aborted) throw error;
      await personal.forget();
      return false;
    }
  }

  async pause(): Promise<void> {
    this.opened.personal.pause();
  }

  async resume(): Promise<void> {
    this.opened.personal.resume();
  }

  async cancel(): Promise<void> {
    this.cancelling.abort();
  }

  async undo(): Promise<InUse> {
    const { generation } = await this.opened.personal.rollback();
    return { personal: !(await this.isAsBuilt()), generation };
  }

  async reset(): Promise<InUse> {
    return { personal: false, generation: (await this.opened.personal.reset()) ?? 0 };
  }

  async exportState(): Promise<Bytes> {
    return await this.opened.personal.export();
  }

  async importState(file: Bytes): Promise<InUse> {
    const { personal } = this.opened;
    const before = await personal.export();
    try {
      await personal.restore(file);
    } catch (error) {
      const isForeign = error instanceof ForeignStateError || error instanceof StateVersionError;
      if (error instanceof StateError) throw new Failure(isForeign ? "file-foreign" : "file-damaged", error.message);
      throw error;
    }
    try {
      const generation = await personal.save();
      return { personal: !(await this.isAsBuilt()), generation };
    } catch (error) {
      await personal.restore(before);
      throw error;
    }
  }

  private get opened(): Loaded {
    return this.loaded ?? fail("the program is not open");
  }

  private async load(wait: boolean): Promise<Loaded> {
    // The largest file first: it comes in while the others are read and checked.
    const runtime = liteRt({ folder: "litert/", compile: compileLiteRt });
    const description = readDescription(await asset(FILE));
    const [data, samples] = await Promise.all([asset(description.program.file), asset(description.samples.file)]);
    await checkDigest(data, description.program.file, description.program.sha256);
    await checkDigest(samples, description.samples.file, description.samples.sha256);
    const program = await Program.open(data);
    checkFits(description, program.manifest);
    const replay = builtInSamples(samples, description);
    const store = await BrowserStore.open(STORE, wait ? new AbortController().signal : undefined);
    try {
      const personal = await Trainer.open(program, runtime, store);
      const original = await Trainer.open(program, runtime, new MemoryStore());
      return { description, replay, personal, original, store };
    } catch (error) {
      store.close();
      throw error;
    }
  }

  /** Takes the person's state, and makes room for a new one where none can be used. Returns its generation. */
  private async restored(problems: Problem[]): Promise<number> {
    const { personal } = this.opened;
    try {
      const { generation, lost } = await personal.restore();
      if (lost !== null) problems.push("state-older");
      return generation;
    } catch (error) {
      if (error instanceof NoStateError) return 0;
      problems.push(problemOf(error));
      if (error instanceof StateError) await personal.setAside();
      return 0;
    }
  }

  private async notes(store: Store, problems: Problem[]): Promise<Notes> {
    const file = await store.read(NOTES);
    if (!file) return EMPTY;
    try {
      return decode(notes, file, NOTES);
    } catch (error) {
      if (!(error instanceof FormatError)) throw error;
      await store.write({ [`${NOTES}.damaged`]: file, [NOTES]: null });
      problems.push("notes-damaged");
      return EMPTY;
    }
  }

  /** Whether the person's model answers as the original does. */
  private async isAsBuilt(): Promise<boolean> {
    const probes = this.opened.replay.slice(0, PROBES).map((sample) => Object.values(sample.inputs)[0]);
    const { original, personal } = await this.logits(probes as Float32Array[]);
    return original.every((row, i) => row.every((value, j) => value === personal[i]?.[j]));
  }
}

/** What an error means for the person. */
export function problemOf(error: unknown): Problem {
  const failure = error instanceof RuntimeFailedError ? error.cause : error;
  if (failure instanceof Failure) return failure.problem;
  if (error instanceof NewerProgramError) return "program-newer";
  if (error instanceof ProgramError) return "program-damaged";
  if (error instanceof ForeignStateError || error instanceof StateVersionError) return "state-foreign";
  if (error instanceof StateError) return "state-damaged";
  if (error instanceof StorageError) return "storage";
  if (error instanceof DivergedError) return "diverged";
  if (error instanceof InputError) return "input";
  return error instanceof BusyError ? "elsewhere" : "runtime";
}

async function logitsOf(trainer: Trainer, images: readonly Float32Array[]): Promise<Float32Array[]> {
  const { infer } = trainer.program.manifest;
  const [input, output] = [
    ofRole(infer.inputs, "input")[0]?.name ?? "",
    ofRole(infer.outputs, "output")[0]?.name ?? "",
  ];
  const rows = await trainer.infer(images.map((image) => ({ [input]: image })));
  return rows.map((row) => row[output] as Float32Array);
}

/** A file that came with the page. */
async function asset(file: string): Promise<Bytes> {
  let response: Response;
  try {
    response = await fetch(file);
  } catch (error) {
    throw new Failure("offline", messageOf(error));
  }
  if (!response.ok) throw new DamagedProgramError(`${file} cannot be read: ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

function fail(message: string): never {
  throw new PocketuneError(message);
}
