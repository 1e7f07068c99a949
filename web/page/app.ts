import type { TrainEvent } from "../trainer.ts";
import type { Description } from "./description.ts";
import type { Kept, Notebook } from "./notebook.ts";
import { type Comparison, EMPTY, missing, type Notes, toJudge, toLearn, withDrawing, withoutDrawing } from "./notes.ts";
import { imageOf } from "./preprocessing.ts";
import { type Coach, Failure, type InUse, type Lesson, type Opening, type Problem } from "./protocol.ts";
import type { Stroke } from "./strokes.ts";

/** A class and how sure a model is of it, 0 to 1. */
export interface Answer {
  readonly label: number;
  readonly sureness: number;
}

/** What each model takes the drawing on the pad for, the most likely first. */
export interface Reading {
  readonly original: readonly Answer[];
  readonly personal: readonly Answer[];
}

/** A training that runs. `isEnding`: it is cancelled or done, and what it made is being looked at. */
export interface Running {
  readonly step: number;
  readonly steps: number;
  readonly losses: readonly number[];
  readonly resumedAt: number;
  readonly isPaused: boolean;
  readonly isEnding: boolean;
}

/** All that the page shows. */
export interface State {
  /** There as soon as a drawing can be kept. */
  readonly description: Description | null;
  /** The open program. */
  readonly model: Omit<Opening, "inUse" | "problem"> | null;
  /** The share of it that has come in; null when that has ended, well or not. */
  readonly loading: number | null;
  readonly notes: Notes;
  /** The class that the next drawing will mean. */
  readonly chosen: number;
  readonly draft: readonly Stroke[];
  readonly reading: Reading | null;
  /** A drawing that the user wants to change. */
  readonly selected: number | null;
  readonly training: Running | null;
  /** Whether the model in use is not the one that was built. */
  readonly personal: boolean;
  /** The models are changing places, or a file is being taken. */
  readonly isBusy: boolean;
  readonly problem: Problem | null;
  /** What was done, for those who cannot see it. */
  readonly said: string;
}

const BEGINNING: State = {
  description: null,
  model: null,
  loading: 0,
  notes: EMPTY,
  chosen: 0,
  draft: [],
  reading: null,
  selected: null,
  training: null,
  personal: false,
  isBusy: false,
  problem: null,
  said: "",
};

/** Digits before it is known what the program knows: the page is there before it. */
const DIGITS = [..."0123456789"];

/** Names of all classes: those of the program, then the user's symbols. */
export function labelsOf(state: State): string[] {
  return [...(state.description?.labels ?? DIGITS), ...state.notes.symbols];
}

export function canPersonalise(state: State): boolean {
  return state.model !== null && !state.training && !state.isBusy && missing(state.notes) === 0;
}

/** All of the page's behaviour: what the user does, and what comes of it. */
export class App {
  private state = BEGINNING;
  private readonly coach: Coach;

  /** The notes are written one after the other, the last ones last. */
  private writing: Promise<void> = Promise.resolve();

  constructor(
    private readonly notebook: Notebook,
    coach: (onEvent: (event: TrainEvent) => void, onLoaded: (share: number) => void) => Coach,
    private readonly draw: (state: State) => void,
  ) {
    this.coach = coach(
      (event) => this.trained(event),
      (loading) => this.change({ loading }),
    );
  }

  /** Gets what is kept of the user, and then the model: it can be taught while that is loading. */
  async open(): Promise<void> {
    this.change({});
    try {
      const kept = await this.recall();
      this.recalled(kept);
      this.opened(await this.coach.open(kept.description));
    } catch (error) {
      this.change({ loading: null });
      this.failed(error);
    }
  }

  private async recall(): Promise<Kept> {
    try {
      return await this.notebook.recall(false);
    } catch (error) {
      if (!(error instanceof Failure) || error.problem !== "elsewhere") throw error;
      this.failed(error);
      return await this.notebook.recall(true);
    }
  }

  private recalled({ description, notes, problem }: Kept): void {
    const said = "You can draw. The model is still loading.";
    this.change({ description, notes, problem, said });
  }

  choose(label: number): void {
    const { selected, notes } = this.state;
    if (selected === null) {
      this.change({ chosen: label });
      return;
    }
    const drawings = notes.drawings.map((each) => (each.id === selected ? { ...each, label } : each));
    this.noted({ ...notes, drawings }, { chosen: label, selected: null });
  }

  /** A name that there is already is chosen rather than added. */
  addSymbol(name: string): void {
    const labels = labelsOf(this.state);
    const { notes, description } = this.state;
    if (name === "" || !description) return;
    if (labels.includes(name)) this.choose(labels.indexOf(name));
    else if (notes.symbols.length < description.spare) {
      this.noted({ ...notes, symbols: [...notes.symbols, name] }, { chosen: labels.length });
    }
  }

  addStroke(stroke: Stroke): void {
    this.change({ draft: [...this.state.draft, stroke], selected: null });
    void this.read();
  }

  clear(): void {
    this.change({ draft: [], reading: null });
  }

  add(): void {
    const { draft, chosen, notes, description } = this.state;
    if (draft.length === 0 || !description) return;
    const added = withDrawing(notes, chosen, draft, description.recipe.held_out_every);
    const said = `Added as ${labelsOf(this.state)[chosen]}. ${added.drawings.length} drawings in all.`;
    this.noted(added, { draft: [], reading: null, said });
  }

  /** Drawings by somebody else, for those who only want to see it work, or cannot draw. */
  addAll(drawings: readonly { label: number; strokes: readonly Stroke[] }[]): void {
    const every = this.state.description?.recipe.held_out_every;
    if (every === undefined) return;
    const added = drawings.reduce(
      (notes, each) => withDrawing(notes, each.label, each.strokes, every),
      this.state.notes,
    );
    this.noted(added, { said: `${drawings.length} drawings added.` });
  }

  select(id: number | null): void {
    this.change({ selected: id });
  }

  delete(): void {
    const { selected, notes } = this.state;
    if (selected !== null) this.noted(withoutDrawing(notes, selected), { selected: null, said: "Deleted." });
  }

  deleteAll(): void {
    this.noted({ ...this.state.notes, drawings: [] }, { selected: null, said: "All drawings deleted." });
  }

  async personalise(): Promise<void> {
    if (!canPersonalise(this.state)) return;
    const training = { step: 0, steps: 0, losses: [], resumedAt: 0, isPaused: false, isEnding: false };
    this.change({ training, problem: null, said: "Training has begun." });
    // What was learned is not to be cleared away when the disk is nearly full; a browser may ask the user.
    void navigator.storage.persist();
    await this.doing(() => this.train());
    this.change({ training: null });
    await this.read();
  }

  pause(): void {
    void this.doing(() => this.coach.pause());
  }

  resume(): void {
    void this.doing(() => this.coach.resume());
  }

  cancel(): void {
    this.change({ training: this.state.training && { ...this.state.training, isEnding: true } });
    void this.doing(() => this.coach.cancel());
  }

  async undo(): Promise<void> {
    await this.switching(async () => {
      const isBack = this.state.notes.switched !== null;
      this.used(await this.coach.undo(), isBack ? null : "undone");
    });
  }

  async reset(): Promise<void> {
    await this.switching(async () => this.used(await this.coach.reset(), "reset"));
  }

  /** The user's model as a file, for the phone, the host or another browser. */
  async exportState(): Promise<Uint8Array<ArrayBuffer> | null> {
    let file: Uint8Array<ArrayBuffer> | null = null;
    await this.doing(async () => {
      file = await this.coach.exportState();
    });
    return file;
  }

  async importState(file: Uint8Array<ArrayBuffer>): Promise<void> {
    await this.switching(async () => {
      const inUse = await this.coach.importState(file);
      this.noted(
        { ...this.state.notes, comparison: null, switched: null, generation: inUse.generation },
        {
          personal: inUse.personal,
          said: "The model from the file is in use.",
        },
      );
    });
  }

  dismiss(): void {
    this.change({ problem: null });
  }

  private opened({ inUse, problem, ...model }: Opening): void {
    // What was noted may be about another state than the one that was found.
    const { notes } = this.state;
    const agreed = inUse.generation === notes.generation ? notes : { ...notes, comparison: null, switched: null };
    this.change({
      model,
      loading: null,
      notes: { ...agreed, generation: inUse.generation },
      personal: inUse.personal,
      problem: problem ?? this.state.problem,
      said: "Ready.",
    });
    void this.read();
  }

  private async train(): Promise<void> {
    const { notes } = this.state;
    const judged = toJudge(notes);
    const before = await this.bestAnswers(judged.map((each) => this.lesson(each).image));
    this.finished = null;
    const lessons = toLearn(notes).map((each) => this.lesson(each));
    if (
      !(await this.coach.train(
        lessons,
        judged.map((each) => this.lesson(each)),
      ))
    ) {
      return this.change({ said: "Cancelled." });
    }
    const end = this.finished as Extract<TrainEvent, { kind: "finished" }> | null;
    if (!end) throw new Failure("diverged", "the loss is not finite");
    const after = await this.bestAnswers(judged.map((each) => this.lesson(each).image));
    const changes = judged.flatMap((drawing, i) => {
      const [was, is] = [before[i] ?? 0, after[i] ?? 0];
      return was === is ? [] : [{ drawing, before: was, after: is }];
    });
    const comparison: Comparison = {
      before: end.before?.accuracy ?? 0,
      after: end.after?.accuracy ?? 0,
      heldOut: judged.length,
      changes,
      isRefused: end.adopted === null,
    };
    const kept = { comparison, switched: comparison.isRefused ? notes.switched : null };
    this.noted(
      { ...this.state.notes, ...kept, generation: end.adopted ?? notes.generation },
      {
        personal: this.state.personal || end.adopted !== null,
        said: `Done. ${Math.round(100 * comparison.before)} percent before, ${Math.round(100 * comparison.after)} percent after.`,
      },
    );
  }

  /** The last event of the training that runs, if it went well. */
  private finished: TrainEvent | null = null;

  private trained(event: TrainEvent): void {
    const { training } = this.state;
    if (!training) return;
    if (event.kind === "started") {
      const { steps, resumedAt } = event;
      this.change({ training: { ...training, steps, resumedAt, step: resumedAt } });
    } else if (event.kind === "step") {
      const losses = [...training.losses, event.loss];
      this.change({ training: { ...training, step: event.step + 1, losses, isPaused: false } });
    } else if (event.kind === "paused" || event.kind === "resumed") {
      this.change({ training: { ...training, isPaused: event.kind === "paused" } });
    } else if (event.kind === "finished" || event.kind === "diverged") {
      this.finished = event.kind === "finished" ? event : null;
      this.change({ training: { ...training, isEnding: true } });
    }
  }

  private lesson({ strokes, label }: { strokes: readonly Stroke[]; label: number }): Lesson {
    const preprocessing = this.state.description?.preprocessing;
    if (!preprocessing) throw new Failure("runtime", "nothing was recalled");
    return { image: imageOf(strokes, preprocessing), label };
  }

  private async bestAnswers(images: Float32Array[]): Promise<number[]> {
    const { personal } = await this.coach.logits(images);
    return personal.map((logits) => ranked(logits, labelsOf(this.state).length)[0]?.label ?? 0);
  }

  /** Reads what is on the pad. */
  private async read(): Promise<void> {
    const { draft, description } = this.state;
    if (draft.length === 0 || !description || !this.state.model) return;
    await this.doing(async () => {
      const { original, personal } = await this.coach.logits([imageOf(draft, description.preprocessing)]);
      if (this.state.draft !== draft) return;
      const count = labelsOf(this.state).length;
      this.change({ reading: { original: ranked(original[0], count), personal: ranked(personal[0], count) } });
    });
  }

  private used({ personal, generation }: InUse, switched: Notes["switched"]): void {
    const said = { undone: "The model from before is in use.", reset: "The original model is in use." };
    this.noted(
      { ...this.state.notes, switched, generation },
      {
        personal,
        said: switched ? said[switched] : "The newest model is in use again.",
      },
    );
  }

  private async switching(work: () => Promise<void>): Promise<void> {
    if (!this.state.model || this.state.training || this.state.isBusy) return;
    this.change({ isBusy: true, problem: null });
    await this.doing(work);
    this.change({ isBusy: false });
    await this.read();
  }

  private async doing(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.failed(error);
    }
  }

  private failed(error: unknown): void {
    if (!(error instanceof Failure)) throw error;
    console.warn(error.message);
    this.change({ problem: error.problem });
  }

  private noted(notes: Notes, change: Partial<State>): void {
    this.change({ ...change, notes });
    this.writing = this.writing.then(() => this.doing(() => this.notebook.save(notes)));
  }

  private change(change: Partial<State>): void {
    this.state = { ...this.state, ...change };
    this.draw(this.state);
  }
}

/** The classes that have a name, the most likely first. */
function ranked(logits: Float32Array = new Float32Array(), count: number): Answer[] {
  const named = [...logits.slice(0, count)];
  const highest = Math.max(...named);
  const shares = named.map((logit) => Math.exp(logit - highest));
  const sum = shares.reduce((all, share) => all + share, 0);
  return shares.map((share, label) => ({ label, sureness: share / sum })).sort((a, b) => b.sureness - a.sureness);
}
