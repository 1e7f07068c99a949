import { type Bytes, bytesOf, joined } from "../bytes.ts";
import { product } from "../manifest/manifest.ts";
import { type Dtype, ELEMENT_BYTES } from "../manifest/manifest-records.ts";
import type { Row, Values } from "../program/samples.ts";
import { Random } from "../session/random.ts";
import { type Tag, UNKNOWN } from "./class-tags.ts";
import { Balancing, emptyReservoir, type Reservoir, withoutLabel } from "./reservoir.ts";

/** What a memory keeps to be replayed: rows as the model takes them, or what its frozen first layers gave. */
export type Keeps = "inputs" | "features";

/** Shares are in millionths, so that every language writes the same number. */
export const MILLION = 1_000_000;

/** Bytes of a row's number and label. */
const NUMBERED = 12;

/** One array of a row, without the axis of the rows. */
export interface RowTensor {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
}

/** The program that rows belong to. */
export interface RowsOwner {
  readonly forward: string;
  /** sha256 of the names and digests of its frozen weights. */
  readonly frozen: string;
  readonly int8: string;
  readonly version: number;
}

/** Rows for one purpose; `rows` one behind the other: number, label, the arrays of `tensors`. */
export interface Part {
  readonly tensors: readonly RowTensor[];
  readonly reservoir: Reservoir;
  readonly rows: Bytes;
}

/** All that a memory holds. */
export interface Contents {
  readonly owner: RowsOwner;
  readonly keeps: Keeps;
  /** Bytes of the file, at most. */
  readonly limit: number;
  /** Millionths of the rows that are kept aside. */
  readonly heldOut: number;
  readonly seed: number;
  /** State of the draws, which go on from there. */
  readonly random: number;
  /** Rows that came. */
  readonly seen: number;
  readonly replay: Part;
  readonly aside: Part;
  /** Of the class that each label was of when its rows came. */
  readonly tags: readonly Tag[];
}

/** What becomes of rows that come: `isAside` says which are held out. */
export interface Offered {
  readonly before: Contents;
  readonly isAside: readonly boolean[];
  /** The contents with these rows; the functions give the arrays of a row. */
  contents(replayed: (row: number) => Row, held: (row: number) => Row): Contents;
}

/** A part without rows. */
export function emptyPart(tensors: readonly RowTensor[], capacity: number, classes: number): Part {
  return { tensors, reservoir: emptyReservoir(capacity, classes), rows: new Uint8Array() };
}

/** Bytes of a stored row. */
export function rowBytes(tensors: readonly RowTensor[]): number {
  return tensors.reduce((sum, tensor) => sum + sizeOf(tensor), NUMBERED);
}

export function classesOf(contents: Contents): number {
  return contents.replay.reservoir.seen.length;
}

/** The number of a row. */
export function numberOf(part: Part, row: number): number {
  return Number(viewOf(part.rows).getBigUint64(row * rowBytes(part.tensors), true));
}

/** The arrays of a row by name. */
export function arraysOf(part: Part, row: number): Row {
  let at = row * rowBytes(part.tensors) + NUMBERED;
  return Object.fromEntries(
    part.tensors.map((tensor) => {
      const from = at;
      at += sizeOf(tensor);
      // A copy: a view of numbers begins at a multiple of their size.
      return [tensor.name, valuesOf(tensor.dtype, part.rows.slice(from, at).buffer)];
    }),
  );
}

/** The contents without the rows of a class. */
export function forgotten(contents: Contents, label: number): Contents {
  const without = (part: Part): Part => {
    const size = rowBytes(part.tensors);
    const kept = [...part.reservoir.labels.keys()].filter((row) => part.reservoir.labels[row] !== label);
    const rows = joined(kept.map((row) => part.rows.subarray(row * size, (row + 1) * size)));
    return { tensors: part.tensors, reservoir: withoutLabel(part.reservoir, label), rows };
  };
  const tags = contents.tags.map((tag, i) => (i === label ? UNKNOWN : tag));
  return { ...contents, replay: without(contents.replay), aside: without(contents.aside), tags };
}

/** The contents with the tags of classes as they are now, for each class that rows came of. */
export function tagged(contents: Contents, tags: readonly Tag[]): Contents {
  const came = (label: number) =>
    [contents.replay, contents.aside].some(({ reservoir }) => (reservoir.seen[label] ?? 0) > 0);
  return { ...contents, tags: tags.map((tag, label) => (came(label) ? tag : UNKNOWN)) };
}

/** What becomes of rows that come, one after another, by their labels; null of one that counts nothing. */
export function offer(contents: Contents, labels: readonly (number | null)[]): Offered {
  const random = Random.at(contents.random);
  const [replay, aside] = [new Balancing(contents.replay.reservoir), new Balancing(contents.aside.reservoir)];
  const isAside = labels.map(() => false);
  const places: PlacedRow[] = [];
  for (const [row, label] of labels.entries()) {
    if (label === null) continue;
    isAside[row] = contents.heldOut > 0 && random.nextInt(MILLION) < contents.heldOut;
    const place = (isAside[row] ? aside : replay).offer(label, random);
    if (place !== null) places.push({ row, number: contents.seen + row, label, place });
  }
  return {
    before: contents,
    isAside,
    contents: (replayed, held) => ({
      ...contents,
      random: random.present,
      seen: contents.seen + labels.length,
      replay: withRows(
        contents.replay,
        replay.result(),
        places.filter(({ row }) => !isAside[row]),
        replayed,
      ),
      aside: withRows(
        contents.aside,
        aside.result(),
        places.filter(({ row }) => isAside[row]),
        held,
      ),
    }),
  };
}

/** A row that came as the `row`-th of a call, and where it lies. */
interface PlacedRow {
  readonly row: number;
  readonly number: number;
  readonly label: number;
  readonly place: number;
}

/** A part with other rows at places that they take, in order: a later one may replace an earlier one. */
function withRows(part: Part, reservoir: Reservoir, come: PlacedRow[], arrays: (row: number) => Row): Part {
  const size = rowBytes(part.tensors);
  const rows = new Uint8Array(reservoir.labels.length * size);
  rows.set(part.rows);
  const view = viewOf(rows);
  for (const { row, number, label, place } of come) {
    let at = place * size;
    view.setBigUint64(at, BigInt(number), true);
    view.setUint32(at + 8, label, true);
    at += NUMBERED;
    const given = arrays(row);
    for (const tensor of part.tensors) {
      rows.set(bytesOf(given[tensor.name] ?? new Uint8Array()), at);
      at += sizeOf(tensor);
    }
  }
  return { tensors: part.tensors, reservoir, rows };
}

function valuesOf(dtype: Dtype, buffer: ArrayBuffer): Values {
  if (dtype === "float32") return new Float32Array(buffer);
  if (dtype === "int32") return new Int32Array(buffer);
  if (dtype === "int16") return new Int16Array(buffer);
  return dtype === "int8" ? new Int8Array(buffer) : new Uint8Array(buffer);
}

function sizeOf(tensor: RowTensor): number {
  return product(tensor.shape) * ELEMENT_BYTES[tensor.dtype];
}

function viewOf(bytes: Bytes): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
