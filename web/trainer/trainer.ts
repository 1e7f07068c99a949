import { type Bytes, joined } from "./bytes.ts";
import type { RuntimeFactory, RuntimeReport, TrainingRuntime } from "./engines/runtime.ts";
import { BusyError, ClosedError, DamagedStateError, DivergedError, InputError, NoStateError } from "./errors.ts";
import type { Program } from "./program/program.ts";
import type { Evaluation, Row, Sample } from "./program/samples.ts";
import type { StateSpec, StoredTensor } from "./program/state-spec.ts";
import type { ReplayMemory } from "./replay/replay-memory.ts";
import { byInference, Curriculum, inBatches } from "./session/batches.ts";
import { Engine } from "./session/engine.ts";
import type { TrainEvent } from "./session/events.ts";
import { Gate, type Guard } from "./session/gate.ts";
import { checkedMost, type GenerateOptions, KeptText, TokenChoice } from "./session/generation.ts";
import { Inputs } from "./session/inputs.ts";
import { LIMITS, type Limits, type Plan, whole } from "./session/plan.ts";
import { RunTimeClasses } from "./session/run-time-classes.ts";
import { Training } from "./session/training.ts";
import { chosenOf, hasTrained, trainedOf, withChannels } from "./state/channels.ts";
import { checkKnown, classesOf } from "./state/classes.ts";
import type { Shrinkage } from "./state/discriminant.ts";
import { Checkpoints, TwoGenerations, taken } from "./state/generations.ts";
import { type Adopt, specOf, UNPROVEN } from "./state/interchange.ts";
import { RedrawnChannels } from "./state/redrawn.ts";
import { isFiniteTensor, isStateOf, pack, replaced } from "./state/state-file.ts";
import type { Store } from "./state/store.ts";

/** What was restored. */
export interface Restored {
  readonly generation: number;
  /** Why the newest state could not be used; null when it could. */
  readonly lost: string | null;
  /** Why it cannot be told that the state belongs to this program, against which nothing speaks; null when it can. */
  readonly unproven: string | null;
  /** The names of the tensors that were taken over. */
  readonly adopted: readonly string[];
  /** Those of the program that are as built; none without `adopt`. */
  readonly left: readonly string[];
  /** Between the state's program and this one, in words. */
  readonly differences: readonly string[];
}

/** What a training is judged by and how it is cancelled. */
export interface FitOptions {
  readonly heldOut?: readonly Sample[];
  /** Rows of earlier trainings, which are mixed in, and which these samples enter. */
  readonly memory?: ReplayMemory;
  readonly signal?: AbortSignal;
}

export interface TrainerOptions {
  readonly guard?: Guard;
  readonly limits?: Limits;
}

/**
 * Trains and uses a program in the browser. Calls may come at any time, and one runs after the other: `infer` and
 * `evaluate` are answered between the steps of a running training, with its present state; what would change or save
 * the state meanwhile throws BusyError. After `close` everything throws ClosedError.
 */
export class Trainer {
  private readonly engine: Engine;
  private readonly inputs: Inputs;
  private readonly runTimeClasses: RunTimeClasses;
  private readonly gate: Gate;
  private readonly personal: TwoGenerations;
  private readonly checkpoints: Checkpoints;
  private readonly states: StateSpec;
  private isTraining = false;
  private isClosed = false;

  /** Ends when all that was asked for before is done. */
  private queue: Promise<unknown> = Promise.resolve();

  private constructor(
    readonly program: Program,
    private readonly runtime: TrainingRuntime,
    store: Store,
    options: TrainerOptions,
  ) {
    const limits = options.limits ?? LIMITS;
    const { manifest } = program;
    this.engine = new Engine(program, runtime);
    this.inputs = new Inputs(manifest, limits);
    this.runTimeClasses = new RunTimeClasses(program, this.engine, this.inputs, () => this.checkOpen());
    this.gate = new Gate(options.guard);
    this.states = specOf(program);
    this.personal = new TwoGenerations(store, this.states, limits.storedBytes / 2);
    this.checkpoints = new Checkpoints(store, this.states, limits.storedBytes / 2);
  }

  /** Loads a program. The state is as built until `restore`. Throws RuntimeFailedError: it is not taken. */
  static async open(
    program: Program,
    runtime: RuntimeFactory,
    store: Store,
    options: TrainerOptions = {},
  ): Promise<Trainer> {
    return new Trainer(program, await runtime(program), store, options);
  }

  /** What really runs. */
  get report(): RuntimeReport {
    return this.runtime.report;
  }

  /**
   * A training, one at a time: nothing happens before its first event is asked for, and each next step when the next
   * one is. The signal cancels it between steps, and so does leaving the loop; `signal.reason` is thrown.
   *
   * It starts from the state in memory. At its end the new state is saved and becomes the present one if accuracy on
   * `heldOut` did not fall (without any it always does); `rollback` brings the one before back. A training that is
   * cancelled, fails or diverges leaves the state in memory and in the store as it was.
   *
   * A training that died with its tab goes on from its last checkpoint when the same samples, plan and state are given
   * again (an early stop then counts from there); `forget` drops it.
   *
   * With a `memory` some of the samples are kept aside by it, its rows are replayed (beside those of the plan, whose share
   * is that of both; half without any), its held-out rows are judged beside `heldOut`, and all samples enter it before
   * `finished`, adopted or not. One of another program throws ReplayError.
   *
   * Before the first step it throws InputError, BusyError, and StateError when a state in the store must not be
   * overwritten (`setAside` moves it away); then RuntimeFailedError, StorageError, and ClosedError.
   */
  async *fit(
    samples: readonly Sample[],
    plan: Plan = {},
    { heldOut = [], memory, signal }: FitOptions = {},
  ): AsyncGenerator<TrainEvent, void> {
    this.checkOpen();
    const { manifest } = this.program;
    this.inputs.check(samples);
    const alone = { samples, plan: whole(plan), heldOut, enter: async () => undefined };
    const given = memory
      ? await memory.curated(manifest, await this.inTurn(() => this.namesInMemory()), samples, alone.plan, heldOut)
      : alone;
    if (given.heldOut.length > 0) this.inputs.checkJudged(given.heldOut, "heldOut");
    this.inputs.checkPlan(given.plan);
    this.inputs.checkEpoch(new Curriculum(given.samples, given.plan, manifest.batch).rows);
    if (this.isTraining) throw new BusyError("a training is running already");
    this.isTraining = true;
    const stir = () => this.gate.stir();
    signal?.addEventListener("abort", stir);
    try {
      await this.personal.checkReplaceable();
      await this.inTurn(() => this.checkKnown([...samples, ...given.heldOut, ...(given.plan.replay?.samples ?? [])]));
      const shop = {
        program: this.program,
        engine: this.engine,
        personal: this.personal,
        checkpoints: this.checkpoints,
        gate: this.gate,
        alone: <T>(work: () => Promise<T>) => this.inTurn(work),
        checkGoesOn: () => {
          this.checkOpen();
          signal?.throwIfAborted();
        },
        isOpen: () => !this.isClosed,
      };
      yield* new Training(shop, given).run();
    } finally {
      signal?.removeEventListener("abort", stir);
      this.isTraining = false;
    }
  }

  /** Adds samples to a memory without a training. Throws InputError, ReplayError and StorageError. */
  async remember(memory: ReplayMemory, samples: readonly Sample[]): Promise<void> {
    await this.alone(async () => {
      this.inputs.check(samples);
      await this.checkKnown(samples);
      await memory.add(this.program.manifest, await this.namesInMemory(), samples);
    });
  }

  /** Lets the running training, or the next, wait before its next step; it says `paused`. */
  pause(): void {
    this.gate.hold();
  }

  /** Ends `pause`. */
  resume(): void {
    this.gate.release();
  }

  /** Drops the checkpoint of an unfinished training. */
  async forget(): Promise<void> {
    await this.alone(() => this.checkpoints.delete());
  }

  /** The model's outputs for some rows: for each row every output by name. Throws InputError. */
  async infer(rows: readonly Row[]): Promise<Row[]> {
    return await this.inTurn(async () => {
      this.inputs.checkRows(rows);
      return await this.engine.infer(byInference(rows, this.program.manifest), () => this.checkOpen());
    });
  }

  /**
   * The ids that a language model writes behind others, at most `most` and as far as a row of the program holds them; it
   * ends at one of `stop`, which is not given. Each call has a text of its own, with the keys and values of what was read
   * kept. A token is computed when it is asked for, by the state of that moment, also between the steps of a running
   * training. Leaving the loop ends it, and so does the signal, between two calls of the runtime; `signal.reason` is
   * thrown.
   *
   * When a token is asked for it throws InputError (also for a program without the signature `generate`), DivergedError,
   * RuntimeFailedError, and ClosedError.
   */
  async *generate(
    ids: ArrayLike<number>,
    { most = 64, stop = [], sampling = {}, signal }: GenerateOptions = {},
  ): AsyncGenerator<number, void> {
    this.checkOpen();
    const choice = new TokenChoice(sampling);
    const text = new KeptText(this.program.manifest, this.engine);
    const ends = new Set(stop);
    const between = () => {
      this.checkOpen();
      signal?.throwIfAborted();
    };
    let unread = text.checked(ids);
    for (let left = Math.min(checkedMost(most), text.room(unread.length)); left > 0; left--) {
      const token = await this.inTurn(async () => choice.next(await text.read(unread, between)));
      if (ends.has(token)) return;
      yield token;
      unread = Int32Array.of(token);
    }
  }

  /** Mean loss and accuracy. Throws InputError and DivergedError. */
  async evaluate(samples: readonly Sample[]): Promise<Evaluation> {
    return await this.inTurn(async () => {
      this.inputs.checkJudged(samples);
      await this.checkKnown(samples);
      const batches = inBatches(samples, this.program.manifest.microBatch);
      return await this.engine.evaluate(batches, () => this.checkOpen());
    });
  }

  /**
   * What each class is called, by label; null where there is room for one. Throws InputError for a program whose last layer
   * is set by steps alone, as all that follow on classes.
   */
  async classes(): Promise<(string | null)[]> {
    return await this.inTurn(async () => classesOf(this.program.manifest, await this.engine.read()));
  }

  /**
   * Sets the last layer to that which finds the class with the nearest mean, without a gradient: an exact start for steps,
   * for which the optimizer's slots begin anew. Each known class has at least one of the samples.
   *
   * With a `shrinkage` nearest is meant by the covariance of the samples' features within their classes: a linear
   * discriminant, whose priors are the shares of the samples. No class can be added to that by its samples.
   */
  async setClassMeans(samples: readonly Sample[], shrinkage?: Shrinkage): Promise<void> {
    await this.alone(() => this.runTimeClasses.setMeans(samples, shrinkage));
  }

  /**
   * Adds a class where there is room for one, and returns its label: the mean of the features of `rows`, without a gradient
   * and with no row of the others changed; or without rows of weights 0, for steps that follow. `save` keeps it with its
   * name, as the next training does.
   */
  async addClass(name: string, rows?: readonly Row[]): Promise<number> {
    return await this.alone(() => this.runTimeClasses.add(name, rows));
  }

  /** Gives a class another name. */
  async renameClass(name: string, after: string): Promise<void> {
    await this.alone(() => this.runTimeClasses.rename(name, after));
  }

  /** Forgets a class that was added: its label is free again. */
  async forgetClass(name: string): Promise<void> {
    await this.alone(() => this.runTimeClasses.forget(name));
  }

  /** Names by label, null where there is room for one, if the state keeps names. */
  private async keptNames(): Promise<(string | null)[] | null> {
    const { manifest } = this.program;
    return manifest.fields.head?.names ? classesOf(manifest, await this.engine.read()) : null;
  }

  /** Names by label as a memory has them: those that the state keeps, or else the program's labels. */
  private async namesInMemory(): Promise<(string | null)[] | null> {
    return (await this.keptNames()) ?? this.program.manifest.labels;
  }

  /** Throws InputError for samples of a class that there is not. */
  private async checkKnown(samples: readonly Sample[]): Promise<void> {
    const names = await this.keptNames();
    if (names) checkKnown(names, samples);
  }

  /**
   * Lets those input channels train that have the most Fisher information on a user's first samples: before the first
   * training, of a state as it was built, or with `reset` after going back to it. The state in memory has them from
   * then on. Returns the channels by weight. Throws InputError, also when the state has trained, and DivergedError.
   */
  async chooseChannels(samples: readonly Sample[], reset = false): Promise<Map<string, Int32Array>> {
    return await this.alone(async () => {
      this.inputs.checkChoosing(samples);
      if (reset) await this.engine.write(this.program.initialState());
      else if (hasTrained(this.program, await this.engine.read())) {
        throw new InputError("the training has begun with other channels: choose them before it, or with reset");
      }
      const batches = inBatches(samples, this.program.manifest.microBatch);
      const chosen = chosenOf(this.program.manifest, await this.engine.fisher(batches));
      await this.engine.write(withChannels(this.program, chosen));
      return chosen;
    });
  }

  /**
   * Lets other channels train: weights take up what was added to theirs, what the optimizer keeps of that begins anew, and
   * the training goes on; `redraw: true` of a plan does it each epoch. They are drawn by a seed, a whole number from 0 on, or
   * with samples those with the most Fisher information. Returns them by weight; throws as `chooseChannels`.
   */
  async redrawChannels(by: number | readonly Sample[]): Promise<Map<string, Int32Array>> {
    return await this.alone(async () => {
      this.inputs.checkRedrawn();
      const channels = new RedrawnChannels(this.program);
      const drawn = typeof by === "number" ? channels.drawn(checkedSeed(by), 0) : await this.weighed(by);
      const state = channels.after(await this.engine.read(), drawn);
      await this.engine.write(state);
      return trainedOf(this.program.manifest, state);
    });
  }

  /** As many channels as train that have the most Fisher information on samples. */
  private async weighed(samples: readonly Sample[]): Promise<Map<string, Int32Array>> {
    this.inputs.checkChoosing(samples);
    const batches = inBatches(samples, this.program.manifest.microBatch);
    return chosenOf(this.program.manifest, await this.engine.fisher(batches));
  }

  /** Writes the state in memory as the next generation and returns its number. */
  async save(): Promise<number> {
    return await this.alone(async () => this.personal.save(await this.engine.read()));
  }

  /**
   * Takes the newest good state of the store, or one of a file from elsewhere, such as one of the host's; `save` keeps
   * that. It may be of another build of the same model. Of one of another program `adopt` takes over what matches; `save`
   * may then overwrite it. Throws StateError, which says what differs; the state in memory then stays.
   */
  async restore(file?: Bytes, adopt?: Adopt): Promise<Restored> {
    return await this.alone(async () => {
      const isAny = () => adopt !== undefined;
      const { state, lost } = file
        ? { state: await taken(file, this.states, isAny), lost: null }
        : await this.personal.load(adopt);
      const { adopted, left, differences, isProven } = state.compared;
      const found = new Map(state.tensors.map((tensor) => [tensor.name, tensor]));
      const whole =
        left.length === 0 ? state.tensors : this.program.initialState().map((it) => found.get(it.name) ?? it);
      this.checkTensors(whole);
      await this.engine.write(whole);
      const unproven = differences.length === 0 && !isProven ? UNPROVEN : null;
      return { generation: state.generation, lost, unproven, adopted, left, differences };
    });
  }

  /**
   * Undo: the generation before the newest becomes the newest, so that a second call is Redo. With one good generation
   * only, the state that was built takes its place. Throws NoStateError when nothing was saved.
   */
  async rollback(): Promise<Restored> {
    return await this.alone(async () => {
      const isWhole = (await this.personal.load()).lost === null;
      // Where the newest was lost, the one before is what is in use: there is nothing else to go back to.
      const before = isWhole ? await this.personal.previous() : null;
      const tensors = before?.tensors ?? this.program.initialState();
      this.checkTensors(tensors);
      // The store first: when it refuses, nothing has happened.
      const generation = await this.personal.save(tensors);
      await this.engine.write(tensors);
      return { generation, lost: null, unproven: null, adopted: [], left: [], differences: [] };
    });
  }

  /**
   * Back to what was built, saved as a generation if there is any, so that `rollback` brings the user's back. Returns
   * that generation, null where nothing was saved.
   */
  async reset(): Promise<number | null> {
    return await this.alone(async () => {
      const tensors = this.program.initialState();
      let generation: number | null = null;
      try {
        await this.personal.load();
        generation = await this.personal.save(tensors);
      } catch (error) {
        // Where nothing was saved there is nothing to be undone.
        if (!(error instanceof NoStateError)) throw error;
      }
      await this.engine.write(tensors);
      return generation;
    });
  }

  /**
   * Moves saved states that cannot be used (damaged, of another program or version) out of the way, to names that end
   * in `.unusable`, so that new ones can be saved. The state in memory stays.
   */
  async setAside(): Promise<void> {
    await this.alone(() => this.personal.setAside());
  }

  /** The state in memory: a copy of each tensor by its name in the program, little-endian. */
  async tensors(): Promise<Map<string, Bytes>> {
    return await this.alone(async () => new Map((await this.engine.read()).map(({ name, bytes }) => [name, bytes])));
  }

  /**
   * Puts tensors into the state in memory, by their names in the program; the others stay. `save` keeps it. Throws
   * InputError and DivergedError; nothing has changed then.
   */
  async putTensors(tensors: ReadonlyMap<string, Bytes>): Promise<void> {
    await this.alone(async () => {
      await this.engine.write(replaced(this.program.manifest, await this.engine.read(), tensors));
    });
  }

  /** The state in memory as a file for the host or another device. Throws DivergedError. */
  async export(): Promise<Bytes> {
    return await this.alone(async () => {
      return await pack({ spec: this.states, generation: 1, tensors: await this.engine.read() });
    });
  }

  /**
   * The model with the weights in memory as a plain `.tflite`, to the byte what the host's `export_inference` writes:
   * its only signature is `infer`. Throws DivergedError, and InputError for a program with adapters.
   */
  async exportInference(): Promise<Bytes> {
    const state = await this.alone(() => this.engine.read());
    const bad = state.find((tensor) => !isFiniteTensor(tensor));
    if (bad) throw new DivergedError(`the model is not exported: ${bad.name} holds NaN or infinity`);
    return joined(await this.program.plainModel(state));
  }

  /** Waits for the step that runs and gives everything back. What was not saved is gone; closing twice is fine. */
  async close(): Promise<void> {
    if (this.isClosed) return;
    this.isClosed = true;
    // A training that waits must learn that it is over.
    this.gate.stir();
    await this.queue;
    this.runtime.close();
  }

  private checkTensors(tensors: StoredTensor[]): void {
    if (!isStateOf(this.program.manifest, tensors)) {
      throw new DamagedStateError("the tensors of the state are not those of this program");
    }
  }

  /** In turn, and never while a training runs. */
  private async alone<T>(work: () => Promise<T>): Promise<T> {
    return await this.inTurn(async () => {
      if (this.isTraining) throw new BusyError("a training is running: cancel it or wait for its end");
      return await work();
    });
  }

  /** When all that was asked for before is done. */
  private async inTurn<T>(work: () => Promise<T>): Promise<T> {
    this.checkOpen();
    const turn = this.queue.then(() => {
      this.checkOpen();
      return work();
    });
    this.queue = turn.catch(() => undefined);
    return await turn;
  }

  private checkOpen(): void {
    if (this.isClosed) throw new ClosedError();
  }
}

function checkedSeed(seed: number): number {
  if (Number.isSafeInteger(seed) && seed >= 0) return seed;
  throw new InputError(`seed must be a whole number from 0 on, got ${seed}`);
}
