import { type Bytes, sha256, utf8 } from "../bytes.ts";

/** By what a memory knows whether a label is still of the class whose rows it keeps: bytes of the host's `class_tags.py`. */
export type Tag = Bytes;

/** Bytes of a tag. */
export const TAG_BYTES = 8;

/** Of a class whose name is not known. */
export const UNKNOWN: Tag = new Uint8Array(TAG_BYTES);

/** The first bytes of the sha256 of each name in UTF-8; null and an empty name are of no class. */
export function tagsOf(names: readonly (string | null)[]): Promise<Tag[]> {
  return Promise.all(names.map(async (name) => (name ? (await sha256(utf8(name))).slice(0, TAG_BYTES) : UNKNOWN)));
}
