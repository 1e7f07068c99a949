import { Decompress } from "fzstd";
import { type Bytes, joined, sha256, toHex } from "../trainer/bytes.ts";
import { messageOf } from "../trainer.ts";
import { Failure } from "./protocol.ts";

/** What the build puts in: the files that it has packed, and what they are then. */
declare const PACKED: Record<string, { bytes: number; sha256: string }>;

/**
 * A file that the build has packed, smaller than browsers can unpack by themselves. It is unpacked while it comes in;
 * `tell` hears the share that has. Throws Failure: it did not come, or is not what was built.
 */
export async function unpacked(file: string, tell: (share: number) => void = () => undefined): Promise<Bytes> {
  const packed = PACKED[file];
  if (!packed) throw new Error(`${file} is not packed`);
  const came: Bytes[] = [];
  const made: Uint8Array[] = [];
  const decoder = new Decompress((part) => made.push(part));
  let size = 0;
  for await (const part of fetched(`${file}.bin`)) {
    came.push(part);
    size += part.length;
    tell(size / packed.bytes);
    try {
      decoder.push(part);
    } catch (error) {
      throw damaged(file, messageOf(error));
    }
  }
  if (toHex(await sha256(...came)) !== packed.sha256) throw damaged(file, "it is not the one that was built");
  return joined(made);
}

/** A file's bytes as they come in. Throws Failure. */
async function* fetched(file: string): AsyncGenerator<Bytes, void> {
  try {
    const { ok, status, body } = await fetch(file);
    if (!ok || !body) throw new Error(`${file} cannot be read: ${status}`);
    const reader = body.getReader();
    for (;;) {
      const { value } = await reader.read();
      if (!value) return;
      yield value;
    }
  } catch (error) {
    throw new Failure("offline", messageOf(error));
  }
}

function damaged(file: string, why: string): Failure {
  return new Failure("program-damaged", `${file} is damaged: ${why}`);
}
