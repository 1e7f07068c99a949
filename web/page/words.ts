import type { State } from "./app.ts";
import type { Problem } from "./protocol.ts";

/** What happened, and what to do. */
export const PROBLEMS: Record<Problem, string> = {
  "program-damaged": "The model that came with this page is damaged. Load the page again; your drawings are safe.",
  "program-newer": "The model needs a newer version of this page. Please load it again.",
  "state-damaged":
    "Your personalised model was damaged, so the original is in use. Your drawings are all there: personalise again.",
  "state-older":
    "Your newest personalised model was damaged, so the one before is in use. Personalise again to make it new.",
  "state-foreign":
    "Your personalised model belongs to another version of this page, so the original is in use. Your drawings are all " +
    "there: personalise again.",
  storage:
    "There is no room left in this browser's storage, so nothing was saved. Make some room and try again; your model " +
    "from before still works.",
  diverged:
    "Training went astray and was stopped. Your model is as it was before. Look for drawings with the wrong meaning, " +
    "then try again.",
  input: "Some drawings cannot be used for training. Delete unusual ones and try again.",
  runtime: "The model could not run in this browser. Your model from before still works; load the page and try again.",
  "notes-damaged": "Your drawings could not be read and were put aside. Please teach the page again.",
  elsewhere: "Pocketune is open in another tab. Close it there, and this tab goes on by itself.",
  offline: "The page could not be loaded completely. Once it was loaded with a connection, it works without one.",
  "file-foreign": "This file holds the state of another model. Your model is as it was.",
  "file-damaged": "This file is no Pocketune state, or it is damaged. Your model is as it was.",
};

/** What the page waits for where there is no model. */
export function waiting({ description, loading }: State): string {
  if (loading === null) return "The model could not be loaded";
  return description ? `The model is loading… ${percent(loading)}` : "Opening…";
}

export function drawings(count: number): string {
  return `${count} ${count === 1 ? "drawing" : "drawings"}`;
}

export function percent(share: number): string {
  return `${Math.round(100 * share)}%`;
}

export function kilobytes(bytes: number): string {
  return `${Math.round(bytes / 1024)} KB`;
}
