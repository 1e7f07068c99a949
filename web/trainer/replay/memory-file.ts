import { areEqual, type Bytes, isFinite32, isZero, joined, sha256, toHex, utf8 } from "../bytes.ts";
import { InputError, messageOf, ReplayError } from "../errors.ts";
import { product } from "../manifest/manifest.ts";
import { dtype, ELEMENT_BYTES } from "../manifest/manifest-records.ts";
import { type Decoded, decode, integer, list, oneOf, record, string } from "../manifest/strict-json.ts";
import { Random } from "../session/random.ts";
import { TAG_BYTES, type Tag, UNKNOWN } from "./class-tags.ts";
import {
  type Contents,
  classesOf,
  emptyPart,
  type Keeps,
  MILLION,
  numberOf,
  type Part,
  type RowsOwner,
  rowBytes,
} from "./contents.ts";
import { MOST_SEEN } from "./reservoir.ts";

const MAGIC = utf8("PTMEMRY\n");
const VERSION = 2;
const FORMAT = `pocketune-memory/${VERSION}`;
const ALIGNMENT = 64;
const FIXED = 16;
const BODY = FIXED + 32;
const MAX_HEADER = 1 << 20;
const CLASS = 8;

/** Bytes of a class in all: of both parts, and its tag. */
const OF_CLASS = 2 * CLASS + TAG_BYTES;
const DIGITS = 64;

/** No file is larger. */
export const MOST_BYTES = 2 ** 31 - 1;

/** What the numbers of a header may add to it as they grow. */
const GROWS = 256;

const entry = record({
  row: list(record({ name: string, dtype, shape: list(integer) })),
  capacity: integer,
  rows: integer,
});
const header = record({
  format: string,
  program: record({ forward: string, frozen: string, int8: string, version: integer }),
  keeps: oneOf("inputs", "features"),
  limit: integer,
  held_out: integer,
  seed: integer,
  random: integer,
  seen: integer,
  classes: integer,
  replay: entry,
  heldout: entry,
  sha256: string,
});
type Header = Decoded<typeof header>;

/** What a memory is begun with. */
export interface Begun {
  readonly owner: RowsOwner;
  readonly keeps: Keeps;
  readonly limit: number;
  readonly heldOut: number;
  readonly seed: number;
}

/** Contents without rows, with room for as many as the limit allows. Throws InputError for none. */
export function begin(begun: Begun, replay: Part, aside: Part): Contents {
  const classes = replay.reservoir.seen.length;
  const empty = { ...begun, random: 0, seen: 0, replay, aside, tags: Array<Tag>(classes).fill(UNKNOWN) };
  const start = aligned(BODY + textOf(empty, "0".repeat(DIGITS)).length + GROWS);
  const room = begun.limit - start - OF_CLASS * classes;
  const sizes = [rowBytes(replay.tensors), rowBytes(aside.tensors)] as const;
  const held = Math.floor(Math.floor((Math.max(room, 0) * begun.heldOut) / MILLION) / sizes[1]);
  const rows = Math.floor((room - held * sizes[1]) / sizes[0]);
  if (rows < 1 || (begun.heldOut > 0 && held < 1)) {
    throw new InputError(
      `limit: ${begun.limit} bytes have no room for rows of ${sizes[0]} bytes and held-out ones of ${sizes[1]}`,
    );
  }
  return {
    ...empty,
    random: new Random(BigInt(begun.seed)).present,
    replay: emptyPart(replay.tensors, rows, classes),
    aside: emptyPart(aside.tensors, held, classes),
  };
}

/** The bytes of the file: at most as many as its limit. */
export async function packMemory(contents: Contents): Promise<Bytes> {
  const parts = [contents.replay, contents.aside];
  const data = joined([...parts.map(tableOf), ...contents.tags, ...parts.map((part) => part.rows)]);
  const text = textOf(contents, toHex(await sha256(data)));
  const start = aligned(BODY + text.length);
  const file = new Uint8Array(start + data.length);
  const view = new DataView(file.buffer);
  file.set(MAGIC);
  view.setUint32(8, VERSION, true);
  view.setUint32(12, text.length, true);
  file.set(text, BODY);
  file.set(await digest(file, text.length), FIXED);
  file.set(data, start);
  return file;
}

/**
 * The contents of a file. `check` is told of the contents without rows before these are looked at, and may refuse them.
 * Throws ReplayError: a byte is missing, added or altered, or the format is of another version.
 */
export async function unpackMemory(file: Bytes, check: (there: Contents) => void = () => undefined): Promise<Contents> {
  const [read, start] = await readHeader(file);
  const { program: owner, keeps, limit, held_out: heldOut, seed, random, seen, classes } = read;
  const entries = [read.replay, read.heldout] as const;
  const [replay, aside] = entries.map((it) => emptyPart(it.row, it.capacity, classes)) as [Part, Part];
  const unknown = Array<Tag>(classes).fill(UNKNOWN);
  const empty = { owner, keeps, limit, heldOut, seed, random, seen, replay, aside, tags: unknown };
  check(empty);
  const [rows, held] = entries.map((it) => it.rows * rowBytes(it.row)) as [number, number];
  const table = CLASS * classes;
  const data = file.subarray(start);
  if (data.length !== OF_CLASS * classes + rows + held) damaged("it is cut short, or bytes follow its last row");
  if (toHex(await sha256(data)) !== read.sha256) damaged("its rows are altered");
  const [first, last] = [OF_CLASS * classes, OF_CLASS * classes + rows];
  const filled = {
    replay: partOf(replay, data.subarray(0, table), data.slice(first, last), seen),
    aside: partOf(aside, data.subarray(table, 2 * table), data.slice(last), seen),
  };
  const tags = unknown.map((_, i) => data.slice(2 * table + i * TAG_BYTES, 2 * table + (i + 1) * TAG_BYTES));
  const numbers = [filled.replay, filled.aside].flatMap((part) =>
    part.reservoir.labels.map((_, row) => numberOf(part, row)),
  );
  if (new Set(numbers).size !== numbers.length) damaged("a row is there twice");
  return { ...empty, ...filled, tags };
}

function partOf(empty: Part, table: Bytes, rows: Bytes, seen: number): Part {
  const size = rowBytes(empty.tensors);
  const [classes, view] = [new DataView(table.buffer, table.byteOffset, table.length), new DataView(rows.buffer)];
  const each = (bytes: Bytes, step: number) => Array.from({ length: bytes.length / step }, (_, i) => i * step);
  const labels = each(rows, size).map((at) => view.getUint32(at + 8, true));
  const came = each(table, CLASS).map((at) => classes.getUint32(at, true));
  const marks = each(table, CLASS).map((at) => classes.getUint32(at + 4, true));
  const part = {
    tensors: empty.tensors,
    reservoir: { capacity: empty.reservoir.capacity, labels, seen: came, full: marks.map((mark) => mark === 1) },
    rows,
  };
  const isBad = labels.some((label, row) => label >= came.length || numberOf(part, row) >= seen);
  if (isBad || marks.some((mark) => mark > 1)) damaged("a row has a bad number or label, or a class a bad mark");
  const kept = came.map(() => 0);
  for (const label of labels) kept[label] = (kept[label] ?? 0) + 1;
  if (kept.some((count, label) => count > (came[label] ?? 0)) || came.some((count) => count > MOST_SEEN)) {
    damaged("more rows of a class are there than came");
  }
  let at = 12;
  for (const { name, dtype: kind, shape } of empty.tensors) {
    const length = product(shape) * ELEMENT_BYTES[kind];
    const isWhole = (row: number) => isFinite32(rows.subarray(row * size + at, row * size + at + length));
    if (kind === "float32" && !labels.every((_, row) => isWhole(row))) damaged(`${name} holds NaN or infinity`);
    at += length;
  }
  return part;
}

async function readHeader(file: Bytes): Promise<[Header, number]> {
  if (!areEqual(file.subarray(0, MAGIC.length), MAGIC) || file.length < BODY) {
    damaged("it is no replay memory, or cut short");
  }
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = view.getUint32(12, true);
  if (length > Math.min(MAX_HEADER, file.length - BODY)) damaged("its header is cut short");
  if (!areEqual(await digest(file, length), file.subarray(FIXED, BODY))) damaged("its header is altered");
  const version = view.getUint32(8, true);
  if (version !== VERSION) {
    damaged(`it is of format version ${version}, and ${VERSION} is known here: update the page, or begin another file`);
  }
  let read: Header;
  try {
    read = decode(header, file.subarray(BODY, BODY + length), "header");
  } catch (error) {
    damaged(`its header is not as agreed (${messageOf(error)})`);
  }
  const start = aligned(BODY + length);
  if (start > file.length || !isZero(file.subarray(BODY + length, start)) || isBad(read)) {
    damaged("its header is not as agreed (a number out of range)");
  }
  return [read, start];
}

function isBad(read: Header): boolean {
  const entries = [read.replay, read.heldout];
  const bounds: [number, number][] = [
    [read.limit, MOST_BYTES],
    [read.held_out, MILLION / 2],
    [read.seed, 2 ** 53],
    [read.random, 2 ** 48 - 1],
    [read.seen, 2 ** 53 - 1],
    [read.classes - 1, MOST_BYTES],
    ...entries.flatMap(({ capacity, rows }): [number, number][] => [
      [rows, capacity],
      [capacity, MOST_BYTES],
    ]),
  ];
  const shapes = entries.flatMap(({ row }) => row.map(({ shape }) => shape));
  const isShape = (shape: readonly number[]) => shape.every((size) => size >= 1) && product(shape) <= MOST_BYTES;
  return (
    read.format !== FORMAT || !shapes.every(isShape) || bounds.some(([number, most]) => number < 0 || number > most)
  );
}

function tableOf(part: Part): Bytes {
  const table = new Uint8Array(CLASS * part.reservoir.seen.length);
  const view = new DataView(table.buffer);
  for (const [label, seen] of part.reservoir.seen.entries()) {
    view.setUint32(label * CLASS, seen, true);
    view.setUint32(label * CLASS + 4, part.reservoir.full[label] ? 1 : 0, true);
  }
  return table;
}

/** The header; its fields are in the order of the format. */
function textOf(contents: Contents, digits: string): Bytes {
  const { owner, keeps, limit, heldOut, seed, random, seen, replay, aside } = contents;
  const [first, last] = [replay, aside].map((part) => ({
    row: part.tensors.map(({ name, dtype, shape }) => ({ name, dtype, shape })),
    capacity: part.reservoir.capacity,
    rows: part.reservoir.labels.length,
  }));
  const { forward, frozen, int8, version } = owner;
  const fields = {
    format: FORMAT,
    program: { forward, frozen, int8, version },
    keeps,
    limit,
    held_out: heldOut,
    seed,
    random,
    seen,
    classes: classesOf(contents),
    replay: first,
    heldout: last,
    sha256: digits,
  };
  return utf8(JSON.stringify(fields));
}

/** sha256 of the fixed part and the header. */
function digest(file: Bytes, length: number): Promise<Bytes> {
  return sha256(file.subarray(0, FIXED), file.subarray(BODY, BODY + length));
}

function aligned(size: number): number {
  return Math.ceil(size / ALIGNMENT) * ALIGNMENT;
}

function damaged(problem: string): never {
  throw new ReplayError(problem);
}
