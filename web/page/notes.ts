import {
  bool,
  type Decoded,
  type Decoder,
  integer,
  list,
  nullable,
  number,
  oneOf,
  record,
  string,
} from "../trainer/manifest/strict-json.ts";
import { type Stroke, strokes } from "./strokes.ts";

/** A character that the user wrote. `heldOut`: kept aside to judge by, never trained on. */
export type Drawing = Decoded<typeof drawing>;
const drawing = record({ id: integer, label: integer, strokes, heldOut: bool });

/** A drawing whose answer changed. */
export type Change = Decoded<typeof change>;
const change = record({ drawing, before: integer, after: integer });

/** What the last training changed: shares of right answers on the drawings kept aside. */
export type Comparison = Decoded<typeof comparison>;
const comparison = record({
  before: number,
  after: number,
  heldOut: integer,
  changes: list(change),
  isRefused: bool,
});

/** All that the user taught, and what came of it. */
export interface Notes {
  readonly drawings: readonly Drawing[];
  /** Names of the user's own symbols, which take the program's spare classes in order. */
  readonly symbols: readonly string[];
  readonly comparison: Comparison | null;
  /** Which model the user has taken in place of the newest since then. */
  readonly switched: "undone" | "reset" | null;
  /** Of the saved state that these two are about; 0 when nothing was saved. */
  readonly generation: number;
}

export const notes: Decoder<Notes> = record({
  drawings: list(drawing),
  symbols: list(string),
  comparison: nullable(comparison),
  switched: nullable(oneOf("undone", "reset")),
  generation: integer,
});

export const EMPTY: Notes = { drawings: [], symbols: [], comparison: null, switched: null, generation: 0 };

/** Which drawing of a class is the first to be kept aside. */
const FIRST_HELD_OUT = 3;
const LEAST_TO_LEARN = 6;

/** With one more drawing. Of each class the third is kept aside, and of the rest every so-many-th. */
export function withDrawing(notes: Notes, label: number, strokes: readonly Stroke[], heldOutEvery: number): Notes {
  const ofClass = notes.drawings.filter((each) => each.label === label);
  const share = Math.floor((ofClass.length + 1 + heldOutEvery - FIRST_HELD_OUT) / heldOutEvery);
  const heldOut = ofClass.filter((each) => each.heldOut).length < share;
  const id = 1 + notes.drawings.reduce((most, each) => Math.max(most, each.id), 0);
  return { ...notes, drawings: [...notes.drawings, { id, label, strokes: [...strokes], heldOut }] };
}

/** Nothing of a deleted drawing is kept. */
export function withoutDrawing(notes: Notes, id: number): Notes {
  const { comparison } = notes;
  const changes = comparison?.changes.filter((each) => each.drawing.id !== id) ?? [];
  return {
    ...notes,
    drawings: notes.drawings.filter((each) => each.id !== id),
    comparison: comparison && { ...comparison, changes },
  };
}

export function toLearn(notes: Notes): Drawing[] {
  return notes.drawings.filter((each) => !each.heldOut);
}

export function toJudge(notes: Notes): Drawing[] {
  return notes.drawings.filter((each) => each.heldOut);
}

/** How many more drawings a training needs at least; 0 when there are enough. */
export function missing(notes: Notes): number {
  const counts = new Map<number, number>();
  for (const { label } of notes.drawings) counts.set(label, (counts.get(label) ?? 0) + 1);
  const most = Math.max(0, ...counts.values());
  const toKeepAside = toJudge(notes).length > 0 ? 0 : Math.max(1, FIRST_HELD_OUT - most);
  return Math.max(LEAST_TO_LEARN - toLearn(notes).length, toKeepAside);
}
