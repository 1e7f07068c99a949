import type { Bytes } from "../bytes.ts";
import { DamagedProgramError } from "../errors.ts";
import { FEATURES } from "../manifest/manifest.ts";
import { decode, FormatError, list, string } from "../manifest/strict-json.ts";

/** The metadata entry with the names of the heads, in order (converter/program/heads.py). */
const HEADS = "pocketune.heads";

/** What a head may be called. */
const NAME = /^[A-Za-z0-9_.-]{1,60}$/;

/** So many names are told. */
const MOST = 20;

/** What a signature of a head is called in the file: `features` is of all of them. */
export function ofSignature(name: string, head: string | undefined): string {
  return head === undefined || name === FEATURES ? name : `${head}/${name}`;
}

/**
 * The metadata of a program, or of one head of a file of several as though it were alone: `pocketune.initial/birds/w` is
 * `pocketune.initial/w` there. Throws DamagedProgramError: the file has no such head, or several and none is asked for.
 */
export function metadataOf(metadata: Map<string, Bytes>, head: string | undefined): Map<string, Bytes> {
  const entry = metadata.get(HEADS);
  if (!entry) {
    if (head === undefined) return metadata;
    throw new DamagedProgramError(`it has one head, and no head '${head}': leave the head out`);
  }
  const names = namesIn(entry);
  const told = names.slice(0, MOST).join(", ") + (names.length > MOST ? ", ..." : "");
  if (head === undefined) {
    throw new DamagedProgramError(`it holds several heads: ${told}. Say which: Program.open(bytes, "${names[0]}")`);
  }
  if (!names.includes(head)) throw new DamagedProgramError(`it has no head '${head}': it has ${told}`);
  const own = new Map<string, Bytes>();
  for (const [name, data] of metadata) {
    const [base = "", of, ...rest] = name.split("/");
    if (of === head) own.set([base, ...rest].join("/"), data);
    else if (of === undefined && name !== HEADS) own.set(name, data);
  }
  return own;
}

function namesIn(entry: Bytes): string[] {
  try {
    const names = decode(list(string), entry, "heads");
    if (names.length > 0 && names.every((name) => NAME.test(name))) return names;
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
  }
  throw new DamagedProgramError("its list of heads is damaged: build it again");
}
