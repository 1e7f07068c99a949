import { type Bytes, sha256, toHex } from "../trainer/bytes.ts";
import { ofRole, rowSize } from "../trainer/manifest.ts";
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
} from "../trainer/strict-json.ts";
import { DamagedProgramError, labelled, type Manifest, type Sample } from "../trainer.ts";
import { preprocessing } from "./preprocessing.ts";

const FILE = "digits.json";

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
    return decode(description, bytes, FILE);
  } catch (error) {
    if (error instanceof FormatError) throw new DamagedProgramError(error.message);
    throw error;
  }
}

/** Throws DamagedProgramError where these are not the bytes that were built. */
export async function checkDigest(bytes: Bytes, file: string, expected: string): Promise<void> {
  if (toHex(await sha256(bytes)) !== expected) throw new DamagedProgramError(`${file} is not the file that was built`);
}

/** The built-in samples: for each its label, a byte, and its pixels, a byte of 0 to `levels` each. */
export function builtInSamples(bytes: Bytes, { preprocessing, samples }: Description): Sample[] {
  const row = 1 + preprocessing.size ** 2;
  if (bytes.length % row !== 0) throw new DamagedProgramError(`the samples are not of ${row - 1} pixels`);
  return Array.from({ length: bytes.length / row }, (_, i) => {
    const [label = 0, ...pixels] = bytes.subarray(i * row, (i + 1) * row);
    return labelled(
      Float32Array.from(pixels, (pixel) => pixel / samples.levels),
      label,
    );
  });
}

/** Throws DamagedProgramError where it is not about this program. */
export function checkFits({ labels, spare, preprocessing, program }: Description, manifest: Manifest): void {
  const [input, ...others] = ofRole(manifest.infer.inputs, "input");
  const takesImages = input && others.length === 0 && rowSize(input) === preprocessing.size ** 2;
  if (!takesImages || !manifest.find("evaluate") || manifest.classes !== labels.length + spare) {
    throw new DamagedProgramError(`${FILE} does not describe ${program.file}`);
  }
}
