import { type Bytes, joined } from "../bytes.ts";
import { InputError, messageOf } from "../errors.ts";
import { type Decoded, decode, integer, list, oneOf, record, string } from "../manifest/strict-json.ts";
import { asHalf } from "./half.ts";
import { bytesOfKnown, damagedAssembly, type Known, known } from "./known.ts";

/**
 * A piece of the file of a plain model: the entry's own next bytes, a buffer, its numbers as float16, a state tensor, a
 * weight that trained as the model has it, or a tensor that is known.
 */
type Part = Decoded<typeof part>;
const part = record(
  { source: oneOf("own", "buffer", "half", "state", "merged", "weight", "known"), nbytes: integer },
  { number: integer, name: string },
);
/** What a program and a state hold. */
export interface Stored {
  buffer: (number: number) => Bytes;
  state: Map<string, Bytes>;
  /** What trained, by name, as the model has it; undefined for what has an adapter. */
  weight: (name: string) => Bytes | undefined;
}
const contents = record({ parts: list(part) }, { known: list(known) });

/** Of the tables of a model with a hundred thousand operators. */
const MOST = 1 << 26;

/** As on the host (converter/program/assembly.py). */
const TIMES = 4;

/**
 * How a program and a state make a plain inference model (the entry `pocketune.inference`): the pieces of its file in
 * order. What is known, and the file, are each at most `TIMES` as large as the program, of `size` bytes, and the state.
 * Throws InputError: the program has adapters; DamagedProgramError: the entry makes no sense.
 */
export async function piecesOf(entry: Bytes, size: number, stored: Stored): Promise<Uint8Array[]> {
  const data = await inflated(entry);
  const end = data.indexOf(10);
  if (end < 0) damagedAssembly("it has no list of parts");
  const read = readContents(data.subarray(0, end));
  const most = TIMES * [...stored.state.values()].reduce((sum, tensor) => sum + tensor.length, size);
  const tensors = read.known ?? [];
  const computed = bytesOfKnown(tensors, (tensor) => found(tensor, stored), most);
  const wanted = new Set(tensors.flatMap((tensor) => tensor.operands ?? []));
  for (const part of read.parts) if (part.source === "known") wanted.add(part.number ?? 0);
  const unread = tensors.findIndex((_, place) => !wanted.has(place));
  if (unread >= 0) damagedAssembly(`nobody reads what is known at ${unread}`);
  const own = data.subarray(end + 1);
  let [at, total] = [0, 0];
  const pieces = read.parts.map((part) => {
    const piece =
      part.source === "own"
        ? own.subarray(at, at + part.nbytes)
        : part.source === "known"
          ? (computed[part.number ?? 0] ?? damagedAssembly(`it has no tensor ${part.number}`))
          : found(part, stored);
    if (piece.length !== part.nbytes) damagedAssembly(`a piece has ${piece.length} bytes, not ${part.nbytes}`);
    total += part.nbytes;
    if (total > most) damagedAssembly(`its parts are ${total} bytes or more, of at most ${most}`);
    if (part.source === "own") at += part.nbytes;
    return piece;
  });
  if (at !== own.length) damagedAssembly(`${own.length - at} bytes are left over`);
  return pieces;
}

function found(part: Part | Known, { buffer, state, weight }: Stored): Bytes {
  if (part.source === "buffer") return buffer(part.number ?? 0);
  if (part.source === "half") return asHalf(buffer(part.number ?? 0));
  if (part.source === "state") return state.get(part.name ?? "") ?? damagedAssembly(`the state has no ${part.name}`);
  const trained = part.source === "weight" ? weight(part.name ?? "") : undefined;
  if (trained) return trained;
  throw new InputError(
    `${part.name} has an adapter, and only the host merges it: export the state, and there call ` +
      "program.export_inference or pocketune export",
  );
}

function readContents(line: Bytes): Decoded<typeof contents> {
  try {
    return decode(contents, line, "contents");
  } catch (error) {
    damagedAssembly(messageOf(error));
  }
}

async function inflated(entry: Bytes): Promise<Bytes> {
  const stream = new Blob([entry]).stream().pipeThrough(new DecompressionStream("deflate"));
  const pieces: Uint8Array[] = [];
  let size = 0;
  try {
    for await (const piece of stream) {
      size += piece.length;
      if (size > MOST) break;
      pieces.push(piece);
    }
  } catch (error) {
    damagedAssembly(messageOf(error));
  }
  if (size > MOST) damagedAssembly("it is too large");
  return joined(pieces);
}
