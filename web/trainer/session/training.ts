import { bytesOf, sha256, toHex, utf8 } from "../bytes.ts";
import { DivergedError, InputError, RuntimeFailedError, StorageError } from "../errors.ts";
import type { Manifest } from "../manifest/manifest.ts";
import type { RunningRate } from "../manifest/manifest-records.ts";
import { refusal } from "../manifest/refusal.ts";
import type { Program } from "../program/program.ts";
import { type Evaluation, isMatched, type Row, type Sample, weightOf } from "../program/samples.ts";
import type { StoredTensor } from "../program/state-spec.ts";
import type { Curated } from "../replay/replay-memory.ts";
import type { Checkpoints, TwoGenerations } from "../state/generations.ts";
import { RedrawnChannels } from "../state/redrawn.ts";
import { isFiniteTensor, isStateOf } from "../state/state-file.ts";
import { Curriculum } from "./batches.ts";
import type { Engine } from "./engine.ts";
import type { TrainEvent } from "./events.ts";
import type { Gate } from "./gate.ts";
import { KeptFeatures } from "./kept-features.ts";
import type { WholePlan } from "./plan.ts";

const MOST_STEPS = 10_000_000;
const WEIGHTS_LOST = "the weights are not finite";

/** What a training works with. */
export interface Workshop {
  readonly program: Program;
  readonly engine: Engine;
  readonly personal: TwoGenerations;
  readonly checkpoints: Checkpoints;
  readonly gate: Gate;
  /** Lets nothing else use the engine meanwhile. Throws ClosedError. */
  readonly alone: <T>(work: () => Promise<T>) => Promise<T>;
  readonly checkGoesOn: () => void;
  readonly isOpen: () => boolean;
}

type Events = AsyncGenerator<TrainEvent, void>;

/** One training, from the state in memory to an adopted one or back. Others may use the engine between two steps. */
export class Training {
  private readonly curriculum: Curriculum;
  private readonly rates: Float32Array;
  private readonly progress: Judge;
  private readonly standstill: Standstill;
  private readonly features: KeptFeatures;
  private before: StoredTensor[] = [];
  private fingerprint = "";

  /** Steps of the last checkpoint. */
  private saved = 0;

  /** Whether the state in memory is the one that shall stay. */
  private isSettled = false;

  private readonly samples: readonly Sample[];
  private readonly plan: WholePlan;
  private readonly heldOut: readonly Sample[];

  /** All of what is `given` is checked. */
  constructor(
    private readonly shop: Workshop,
    private readonly given: Curated,
  ) {
    const { samples, plan, heldOut } = given;
    [this.samples, this.plan, this.heldOut] = [samples, plan, heldOut];
    this.curriculum = new Curriculum(samples, plan, shop.program.manifest.batch);
    this.rates = ratesOf(plan, this.curriculum.stepsPerEpoch, shop.program.manifest);
    this.standstill = new Standstill(this.rates, shop.program.manifest.runningRate);
    this.features = new KeptFeatures(shop.program.manifest, shop.engine);
    this.progress = new Judge(plan.earlyStop?.patience ?? null);
  }

  /** All of it; afterwards, also when the caller takes no more events, the state is adopted or what it was. */
  async *run(): Events {
    this.before = await this.shop.alone(() => this.shop.engine.read());
    try {
      yield* this.train();
    } finally {
      if (!this.isSettled && this.shop.isOpen()) await this.putBack();
    }
  }

  private async *train(): Events {
    const { plan, heldOut } = this;
    const perEpoch = this.curriculum.stepsPerEpoch;
    const before = await this.evaluate();
    const done = plan.checkpointEvery > 0 ? await this.takeUp() : 0;
    this.saved = done;
    yield {
      kind: "started",
      samples: this.samples.length,
      heldOut: heldOut.length,
      epochs: plan.epochs,
      steps: this.rates.length,
      resumedAt: done,
      before,
    };
    for (const batch of this.features.calls([...this.samples, ...(plan.replay?.samples ?? [])])) {
      await this.shop.alone(() => this.features.keep(batch, this.shop.checkGoesOn));
    }
    for (let epoch = Math.floor(done / perEpoch); epoch < plan.epochs && !this.progress.isOver; epoch++) {
      yield* this.epoch(epoch, done);
      if (!this.isSettled) yield* this.judge(epoch);
      if (this.isSettled) return;
      if ((epoch + 1) * perEpoch >= this.rates.length) break;
    }
    yield* this.finish(before);
  }

  /** Goes on from a checkpoint of this very training; returns how many steps were done. */
  private async takeUp(): Promise<number> {
    const { engine, checkpoints, program } = this.shop;
    this.fingerprint = await this.digest();
    const found = await checkpoints.load(this.fingerprint);
    if (!found || found.steps >= this.rates.length || !isStateOf(program.manifest, found.tensors)) return 0;
    await this.shop.alone(() => engine.write(found.tensors));
    return found.steps;
  }

  /** The steps of an epoch after the first `done` of the training. */
  private async *epoch(epoch: number, done: number): Events {
    const { engine, gate, alone, checkGoesOn } = this.shop;
    const { stepsPerEpoch: perEpoch, skipping } = this.curriculum;
    const batches = this.curriculum.batches(this.plan.firstEpoch + epoch);
    if (epoch * perEpoch >= done) await this.redraw(this.plan.firstEpoch + epoch);
    if (skipping && skipping.leftOut > 0) {
      yield { kind: "skipped", epoch, rows: skipping.leftOut, of: this.curriculum.rows };
    }
    for (const [i, rows] of batches.entries()) {
      const step = epoch * perEpoch + i;
      if (step < done) continue;
      if (step >= this.rates.length) return;
      yield* gate.pass(checkGoesOn);
      const why = await this.standstill.at(step, () => alone(() => engine.read()));
      if (why !== null) yield { kind: "standstill", step, why };
      const started = performance.now();
      const rate = this.rates[step] ?? 0;
      let loss: number;
      try {
        loss = await alone(() => engine.train(this.features.of(rows), rate, this.features.stepName));
      } catch (error) {
        if (!(error instanceof DivergedError)) throw error;
        return yield await this.diverged(epoch, step, Number.NaN, error.message);
      }
      const millis = performance.now() - started;
      if (!Number.isFinite(loss)) {
        return yield await this.diverged(epoch, step, loss, refusal(this.shop.program.manifest, loss, rate));
      }
      skipping?.see(rows.places, engine.rowLosses);
      yield { kind: "step", epoch, step, loss, millis, weight: rows.weight };
      if (this.isCheckpoint(step + 1)) yield await this.checkpoint(epoch, step);
      if (this.isSettled) return;
    }
    const end = (epoch + 1) * perEpoch;
    if (this.isCheckpointBehind(epoch, end)) yield await this.checkpoint(epoch, end - 1);
  }

  /** Other channels train from the beginning of an epoch on; the first has those that it finds. */
  private async redraw(number: number): Promise<void> {
    const { engine, program, alone } = this.shop;
    if (!this.plan.redraw || number === 0) return;
    const channels = new RedrawnChannels(program);
    const drawn = channels.drawn(this.plan.seed, number);
    await alone(async () => engine.write(channels.after(await engine.read(), drawn)));
  }

  /** Where rows are skipped, a checkpoint stands before an epoch in which all come: nobody needs their losses then. */
  private isCheckpointBehind(epoch: number, done: number): boolean {
    const { checkpointEvery, firstEpoch } = this.plan;
    const isDue = checkpointEvery > 0 && done - this.saved >= checkpointEvery && done < this.rates.length;
    return isDue && (this.curriculum.skipping?.comeAllIn(firstEpoch + epoch + 1) ?? false);
  }

  private isCheckpoint(done: number): boolean {
    const { checkpointEvery, skip } = this.plan;
    return !skip && checkpointEvery > 0 && done % checkpointEvery === 0 && done < this.rates.length;
  }

  private async checkpoint(epoch: number, step: number): Promise<TrainEvent> {
    this.shop.checkGoesOn();
    const state = await this.shop.alone(() => this.shop.engine.read());
    if (!state.every(isFiniteTensor)) return await this.diverged(epoch, step, Number.NaN, WEIGHTS_LOST);
    await this.shop.checkpoints.save(this.fingerprint, step + 1, state);
    this.saved = step + 1;
    return { kind: "checkpointed", steps: step + 1 };
  }

  /** How good the model is after an epoch. */
  private async *judge(epoch: number): Events {
    let evaluation: Evaluation | null;
    try {
      evaluation = await this.evaluate();
    } catch (error) {
      if (!(error instanceof DivergedError)) throw error;
      const step = (epoch + 1) * this.curriculum.stepsPerEpoch - 1;
      return yield await this.diverged(epoch, step, Number.NaN, "the loss on the held-out samples is not finite");
    }
    if (!evaluation) return;
    const isBest = await this.progress.add(evaluation, () => this.shop.alone(() => this.shop.engine.read()));
    yield { kind: "evaluated", epoch, evaluation, isBest };
  }

  private async *finish(before: Evaluation | null): Events {
    const { engine, personal, alone, checkGoesOn } = this.shop;
    const { kept: after, bestState } = this.progress;
    const state = bestState ?? (await alone(() => engine.read()));
    if (!state.every(isFiniteTensor)) {
      return yield await this.diverged(this.plan.epochs - 1, this.rates.length - 1, Number.NaN, WEIGHTS_LOST);
    }
    checkGoesOn();
    const isWorse = before !== null && after !== null && !isMatched(before, after);
    if (bestState && !isWorse) await alone(() => engine.write(bestState));
    const adopted = isWorse ? null : await alone(() => personal.save(state));
    if (isWorse) await alone(() => engine.write(this.before));
    this.isSettled = true;
    await this.dropCheckpoints();
    await this.given.enter();
    yield { kind: "finished", before, after, stoppedEarly: this.progress.isOver, adopted };
  }

  private async diverged(epoch: number, step: number, loss: number, why: string): Promise<TrainEvent> {
    await this.shop.alone(() => this.shop.engine.write(this.before));
    this.isSettled = true;
    await this.dropCheckpoints();
    return { kind: "diverged", epoch, step, loss, why };
  }

  private async dropCheckpoints(): Promise<void> {
    try {
      await this.shop.checkpoints.delete();
    } catch (error) {
      // They belong to a training that is over: nothing takes them up again, and the next ones overwrite them.
      if (!(error instanceof StorageError)) throw error;
    }
  }

  private async evaluate(): Promise<Evaluation | null> {
    const { engine, alone, checkGoesOn } = this.shop;
    if (this.heldOut.length === 0) return null;
    return await alone(async () => {
      const batches = await this.features.judged(this.heldOut, checkGoesOn);
      return await engine.evaluate(batches, checkGoesOn, this.features.evaluateName);
    });
  }

  private async putBack(): Promise<void> {
    try {
      await this.shop.alone(() => this.shop.engine.write(this.before));
    } catch (error) {
      // Whatever ended the training is what the caller is told.
      if (!(error instanceof RuntimeFailedError)) throw error;
    }
  }

  /** A digest of all that decides the course of a training. */
  private async digest(): Promise<string> {
    const { epochs, shuffle, seed, replay, balanceClasses, firstEpoch, skip, redraw } = this.plan;
    const orders = [
      epochs,
      shuffle,
      seed,
      replay?.share ?? null,
      balanceClasses,
      firstEpoch,
      ...(skip ? [skip] : []),
      ...(redraw ? ["redraw"] : []),
    ];
    const pieces: Uint8Array[] = [utf8(JSON.stringify(orders))];
    pieces.push(bytesOf(this.rates), ...this.before.map((tensor) => tensor.bytes));
    const row = (values: Row) => {
      for (const name of Object.keys(values).sort()) pieces.push(utf8(name), bytesOf(values[name] ?? new Uint8Array()));
    };
    for (const sample of [...this.samples, ...(replay?.samples ?? [])]) {
      row(sample.inputs);
      row(sample.targets);
      pieces.push(bytesOf(Float32Array.of(weightOf(sample))));
    }
    return toHex(await sha256(...pieces));
  }
}

function ratesOf(plan: WholePlan, perEpoch: number, { learningRate, runningRate }: Manifest): Float32Array {
  const steps = Math.min(plan.epochs * perEpoch, plan.steps ?? Number.POSITIVE_INFINITY);
  if (steps > MOST_STEPS) throw new InputError(`${steps} steps are too many, the limit is ${MOST_STEPS}`);
  if (runningRate !== null && plan.learningRate !== null) {
    throw new InputError(
      `learningRate: the rate of this program runs in it (${runningRate.description}): leave it out. rateScale ` +
        "multiplies that rate; for rates of your own build with a constant one",
    );
  }
  const given = plan.learningRate ?? learningRate ?? 1;
  const scale = Math.fround(plan.rateScale);
  const rates = new Float32Array(steps);
  for (let step = 0; step < steps; step++) {
    rates[step] = Math.fround(typeof given === "function" ? given(step, steps) : given) * scale;
  }
  const bad = rates.findIndex((rate) => !Number.isFinite(rate) || rate < 0);
  if (bad >= 0) throw new InputError(`learningRate: ${rates[bad]} at step ${bad}`);
  return rates;
}

/**
 * Finds the step from which on the learning rate is 0.
 *
 * The steps that are left until a schedule has run out are counted down: to read the counter of the state copies all of
 * it. A step may count less than 1, so it is read again before anything is said.
 */
class Standstill {
  private left = 0;
  private isTold = false;

  constructor(
    private readonly rates: Float32Array,
    private readonly running: RunningRate | null,
  ) {}

  /** Why nothing changes from a step on, which comes next; null otherwise, and once it was told. */
  async at(step: number, state: () => Promise<StoredTensor[]>): Promise<string | null> {
    if (this.isTold) return null;
    const isZero = this.rates[step] === 0 && this.rates.subarray(step).every((rate) => rate === 0);
    const why = isZero ? "the learning rate is 0" : await this.ended(state);
    this.isTold = why !== null;
    return why;
  }

  private async ended(state: () => Promise<StoredTensor[]>): Promise<string | null> {
    const { description, zero_from: end, counter } = this.running ?? {};
    if (end == null || --this.left > 0) return null;
    const tensor = counter == null ? undefined : (await state()).find((each) => each.name === counter);
    this.left = end - (tensor ? numberOf(tensor) : end);
    if (this.left > 0) return null;
    return (
      `the learning rate is 0: it runs in the program (${description}), and that has ended. ` +
      "A program that goes on learning is built with a constant rate"
    );
  }
}

/** The first number of a float32 tensor. */
function numberOf({ bytes }: StoredTensor): number {
  return new DataView(bytes.buffer, bytes.byteOffset).getFloat32(0, true);
}

/** Follows the held-out loss from epoch to epoch. */
class Judge {
  /** Of the best epoch; only where there is an early stop. */
  bestState: StoredTensor[] | null = null;
  private best: Evaluation | null = null;
  private last: Evaluation | null = null;
  private epochsWithoutGain = 0;

  constructor(private readonly patience: number | null) {}

  /** It is time to stop. */
  get isOver(): boolean {
    return this.patience !== null && this.epochsWithoutGain >= this.patience;
  }

  /** Of the state that is kept. */
  get kept(): Evaluation | null {
    return this.bestState ? this.best : this.last;
  }

  /** Whether it is the best so far. */
  async add(now: Evaluation, state: () => Promise<StoredTensor[]>): Promise<boolean> {
    const isBest = this.best === null || now.loss < this.best.loss;
    this.epochsWithoutGain = isBest ? 0 : this.epochsWithoutGain + 1;
    this.last = now;
    if (isBest) this.best = now;
    if (isBest && this.patience !== null) this.bestState = await state();
    return isBest;
  }
}
