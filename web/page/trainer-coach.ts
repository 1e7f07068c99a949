import type { Bytes } from "../trainer/bytes.ts";
import { ofRole } from "../trainer/manifest/manifest.ts";
import {
  BrowserStore,
  DamagedProgramError,
  ForeignStateError,
  labelled,
  liteRt,
  MemoryStore,
  messageOf,
  NoStateError,
  PocketuneError,
  Program,
  type RuntimeFactory,
  type Sample,
  StateError,
  StateVersionError,
  type TrainEvent,
  Trainer,
} from "../trainer.ts";
import { builtInSamples, checkDigest, checkFits } from "./built-in.ts";
import type { Description } from "./description.ts";
import { problemOf } from "./problems.ts";
import { type Coach, Failure, type InUse, type Lesson, type Logits, type Opening, type Problem } from "./protocol.ts";
import { unpacked } from "./unpack.ts";

const LITERT = "litert/";
const STORE = "digits";
const CHECKPOINT_EVERY = 30;
const PROBES = 16;

interface Loaded {
  readonly description: Description;
  readonly replay: Sample[];
  readonly personal: Trainer;
  readonly original: Trainer;
}

/** Trains the page's program. One trainer holds the user's model, a second one the model as it was built. */
export class TrainerCoach implements Coach {
  private loaded: Loaded | undefined;
  private cancelling = new AbortController();
  /** Comes in from now on, beside all else: it is nearly all that the page weighs. */
  private readonly runtime: RuntimeFactory;

  /** `tell` hears of trainings, `loading` which share of the runtime has come in. */
  constructor(
    private readonly tell: (event: TrainEvent) => void,
    loading: (share: number) => void,
  ) {
    this.runtime = liteRt({ folder: LITERT, compile: (file) => compiled(file, loading) });
  }

  async open(description: Description): Promise<Opening> {
    this.loaded = await this.load(description);
    const { personal } = this.loaded;
    const { generation, problem } = await restored(personal);
    return {
      report: personal.report,
      stateBytes: personal.program.manifest.stateBytes,
      inUse: { personal: !(await this.isAsBuilt()), generation },
      problem,
    };
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

  private async load(description: Description): Promise<Loaded> {
    const { program, samples } = description;
    const [data, built] = await Promise.all([unpacked(program.file), asset(samples.file)]);
    await checkDigest(data, program.file, program.sha256);
    await checkDigest(built, samples.file, samples.sha256);
    const opened = await Program.open(data);
    checkFits(description, opened.manifest);
    const replay = builtInSamples(built, description);
    // Another tab that is being closed may have the store a moment longer than the user's notes.
    const store = await BrowserStore.open(STORE, new AbortController().signal);
    const personal = await Trainer.open(opened, this.runtime, store);
    const original = await Trainer.open(opened, this.runtime, new MemoryStore());
    return { description, replay, personal, original };
  }

  /** Whether the user's model answers as the original does. */
  private async isAsBuilt(): Promise<boolean> {
    const probes = this.opened.replay.slice(0, PROBES).map((sample) => Object.values(sample.inputs)[0]);
    const { original, personal } = await this.logits(probes as Float32Array[]);
    return original.every((row, i) => row.every((value, j) => value === personal[i]?.[j]));
  }
}

/** Takes the user's state, and makes room for a new one where it is damaged or of another program. */
async function restored(personal: Trainer): Promise<{ generation: number; problem: Problem | null }> {
  try {
    const { generation, lost } = await personal.restore();
    return { generation, problem: lost === null ? null : "state-older" };
  } catch (error) {
    if (error instanceof NoStateError) return { generation: 0, problem: null };
    // What a newer page saved stays for that page.
    if (error instanceof StateError && !(error instanceof StateVersionError)) await personal.setAside();
    return { generation: 0, problem: problemOf(error) };
  }
}

/** One of LiteRT.js' WebAssembly files. */
async function compiled(file: string, loading: (share: number) => void): Promise<WebAssembly.Module> {
  // LiteRT.js asks for the script only then, and finds it in the browser's cache.
  const [bytes] = await Promise.all([unpacked(LITERT + file, loading), asset(LITERT + file.replace(/\.wasm$/, ".js"))]);
  return await WebAssembly.compile(bytes);
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
