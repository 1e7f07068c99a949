import { type Bytes, joined } from "./bytes.ts";
import { DamagedProgramError, InputError, messageOf } from "./errors.ts";
import { type Decoded, decode, integer, list, oneOf, record, string } from "./strict-json.ts";

/** A piece of the file of a plain model: the entry's own next bytes, a buffer of the program, or a state tensor. */
type Part = Decoded<typeof part>;
const part = record(
  { source: oneOf("own", "buffer", "state", "merged"), nbytes: integer },
  { number: integer, name: string },
);
const contents = record({ parts: list(part) });

/** Of the tables of a model with a hundred thousand operators. */
const MOST = 1 << 26;

/**
 * How a program and a state make a plain inference model (the entry `pocketune.inference`): the pieces of its file in
 * order. Throws InputError: the program has adapters; DamagedProgramError: the entry makes no sense.
 */
export async function piecesOf(
  entry: Bytes,
  buffer: (number: number) => Bytes,
  state: Map<string, Bytes>,
): Promise<Uint8Array[]> {
  const data = await inflated(entry);
  const end = data.indexOf(10);
  if (end < 0) damaged("it has no list of parts");
  const { parts } = readParts(data.subarray(0, end));
  const own = data.subarray(end + 1);
  let at = 0;
  const pieces = parts.map((part) => {
    const piece = part.source === "own" ? own.subarray(at, at + part.nbytes) : found(part, buffer, state);
    if (piece.length !== part.nbytes) damaged(`a piece has ${piece.length} bytes, not ${part.nbytes}`);
    if (part.source === "own") at += part.nbytes;
    return piece;
  });
  if (at !== own.length) damaged(`${own.length - at} bytes are left over`);
  return pieces;
}

function found(part: Part, buffer: (number: number) => Bytes, state: Map<string, Bytes>): Bytes {
  if (part.source === "buffer") return buffer(part.number ?? 0);
  if (part.source === "state") return state.get(part.name ?? "") ?? damaged(`the state has no ${part.name}`);
  throw new InputError(
    `${part.name} has an adapter, and only the host merges it: export the state, and there call ` +
      "program.export_inference or python -m converter export",
  );
}

function readParts(line: Bytes): Decoded<typeof contents> {
  try {
    return decode(contents, line, "parts");
  } catch (error) {
    damaged(messageOf(error));
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
    damaged(messageOf(error));
  }
  if (size > MOST) damaged("it is too large");
  return joined(pieces);
}

function damaged(problem: string): never {
  throw new DamagedProgramError(`how its plain model is put together is damaged (${problem}): load it again`);
}
