import { sha256, toHex, utf8 } from "../bytes.ts";
import { DamagedProgramError } from "../errors.ts";

const MARK = utf8("pocketune-sha256:");
const DIGITS = 64;

/**
 * Finds any changed byte of a program file: the entry `pocketune.seal` in it holds the sha256 of the file with these 64
 * digits replaced by zeros. A runtime runs a file with flipped bits as if nothing were wrong.
 */
export async function verifyChecksum(data: Uint8Array): Promise<void> {
  const start = indexOf(data, MARK);
  if (start < 0) {
    throw new DamagedProgramError(
      "it is no Pocketune program, or damaged: it has no checksum; a model that was exported has none, and does not train",
    );
  }
  const digits = start + MARK.length;
  const end = digits + DIGITS;
  if (end > data.length) throw new DamagedProgramError("it is damaged: its checksum is cut short");
  const digest = await sha256(data.subarray(0, digits), utf8("0".repeat(DIGITS)), data.subarray(end));
  if (toHex(digest) !== String.fromCharCode(...data.subarray(digits, end))) {
    throw new DamagedProgramError("it is damaged, its checksum does not match: load it again");
  }
}

function indexOf(data: Uint8Array, mark: Uint8Array): number {
  const first = mark[0] ?? 0;
  for (let at = data.indexOf(first); at >= 0; at = data.indexOf(first, at + 1)) {
    if (at + mark.length <= data.length && mark.every((byte, i) => data[at + i] === byte)) return at;
  }
  return -1;
}
