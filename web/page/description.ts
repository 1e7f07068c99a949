import type { Bytes } from "../trainer/bytes.ts";
import { DamagedProgramError } from "../trainer/errors.ts";
import {
  type Decoded,
  decode,
  FormatError,
  integer,
  list,
  number,
  oneOf,
  record,
  string,
} from "../trainer/manifest/strict-json.ts";
import { preprocessing } from "./preprocessing.ts";

export const DESCRIPTION_FILE = "digits.json";

/** What scripts/build_app_assets says about the files that it made. */
export type Description = Decoded<typeof description>;
const description = record({
  format: oneOf("pocketune-app/1"),
  program: record({ file: string, sha256: string }),
  samples: record({ file: string, sha256: string, levels: integer }),
  labels: list(string),
  spare: integer,
  preprocessing,
  recipe: record({ epochs: integer, learning_rate: number, replay: number, held_out_every: integer }),
});

/** Throws DamagedProgramError for anything but a description of a kind that this page knows. */
export function readDescription(bytes: Bytes): Description {
  try {
    return decode(description, bytes, DESCRIPTION_FILE);
  } catch (error) {
    if (error instanceof FormatError) throw new DamagedProgramError(error.message);
    throw error;
  }
}
