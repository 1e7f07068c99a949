import { utf8 } from "../trainer/bytes.ts";
import { decode, FormatError } from "../trainer/manifest/strict-json.ts";
import { BrowserStore, type Store } from "../trainer/state/store.ts";
import { type Description, readDescription } from "./description.ts";
import { EMPTY, type Notes, notes } from "./notes.ts";
import { failureOf } from "./problems.ts";
import type { Problem } from "./protocol.ts";

/** What the build puts in: digits.json, without which no drawing can be kept. */
declare const DESCRIPTION: string;

const STORE = "notes";
const FILE = "notes.json";

/** What the program is about, and what the user taught. */
export interface Kept {
  readonly description: Description;
  readonly notes: Notes;
  readonly problem: Problem | null;
}

/**
 * What the user taught, in a store of its own. The page itself has it, so that nothing of a model needs to be there
 * yet. What goes wrong is thrown as a Failure.
 */
export class Notebook {
  private store: Store | undefined;

  /** Takes the store; with `wait`, as soon as no other tab has it. */
  async recall(wait: boolean): Promise<Kept> {
    try {
      const description = readDescription(utf8(DESCRIPTION));
      this.store = await BrowserStore.open(STORE, wait ? new AbortController().signal : undefined);
      return { description, ...(await notesIn(this.store)) };
    } catch (error) {
      throw failureOf(error);
    }
  }

  /** Keeps notes in place of those before; there is a store when any can be made. */
  async save(notes: Notes): Promise<void> {
    try {
      await this.store?.write({ [FILE]: utf8(JSON.stringify(notes)) });
    } catch (error) {
      throw failureOf(error);
    }
  }
}

async function notesIn(store: Store): Promise<{ notes: Notes; problem: Problem | null }> {
  const file = await store.read(FILE);
  if (!file) return { notes: EMPTY, problem: null };
  try {
    return { notes: decode(notes, file, FILE), problem: null };
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    await store.write({ [`${FILE}.damaged`]: file, [FILE]: null });
    return { notes: EMPTY, problem: "notes-damaged" };
  }
}
