import { type Bytes, sha256, toHex } from "../trainer/bytes.ts";
import { DamagedProgramError } from "../trainer/errors.ts";
import { type Manifest, ofRole, rowSize } from "../trainer/manifest/manifest.ts";
import { labelled, type Sample } from "../trainer/program/samples.ts";
import { DESCRIPTION_FILE, type Description } from "./description.ts";

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
    throw new DamagedProgramError(`${DESCRIPTION_FILE} does not describe ${program.file}`);
  }
}
