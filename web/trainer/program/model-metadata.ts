import { type Bytes, text } from "../bytes.ts";
import { DamagedProgramError } from "../errors.ts";

// Places of fields in the tables of TFLite's schema; fixed for all time by the format.
const MODEL_BUFFERS = 4;
const MODEL_METADATA = 6;
const BUFFER_DATA = 0;
const METADATA_NAME = 0;
const METADATA_BUFFER = 1;

// More than any program needs; they bound the work that a hostile file can ask for.
const MAX_ENTRIES = 100_000;
const MAX_NAME = 4096;

interface Vector {
  start: number;
  count: number;
}

/** What travels in a `.tflite` besides the graphs. Every offset is checked before it is followed. */
export class ModelMetadata {
  private readonly view: DataView;

  constructor(private readonly data: Bytes) {
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  }

  /**
   * The entries by name, as views of the file. Those whose names begin with one of `references` hold the number of the
   * buffer that is meant. Throws DamagedProgramError: an offset leads out of the file, or it is no TFLite model.
   */
  entries(...references: string[]): Map<string, Bytes> {
    if (this.data.length < 8 || String.fromCharCode(...this.data.subarray(4, 8)) !== "TFL3") {
      throw new DamagedProgramError("it is no TFLite model");
    }
    const root = this.int(0);
    const buffers = this.vector(root, MODEL_BUFFERS);
    const entries = this.vector(root, MODEL_METADATA);
    if (entries.count > MAX_ENTRIES) damaged();
    const found = new Map<string, Bytes>();
    for (let i = 0; i < entries.count; i++) {
      const entry = this.indirect(entries.start + 4 * i);
      const name = this.nameOf(this.bytes(entry, METADATA_NAME));
      const place = this.field(entry, METADATA_BUFFER);
      const own = this.bufferOf(buffers, place === undefined ? 0 : this.int(place));
      const refers = references.some((reference) => name.startsWith(reference));
      found.set(name, refers ? this.bufferOf(buffers, numberIn(own)) : own);
    }
    return found;
  }

  /** A buffer of the file, as a view. Throws DamagedProgramError when there is none of this number. */
  buffer(number: number): Bytes {
    return this.bufferOf(this.vector(this.int(0), MODEL_BUFFERS), number);
  }

  private bufferOf(buffers: Vector, number: number): Bytes {
    if (number < 0 || number >= buffers.count) damaged();
    return this.bytes(this.indirect(buffers.start + 4 * number), BUFFER_DATA);
  }

  private nameOf(bytes: Bytes): string {
    if (bytes.length > MAX_NAME) damaged();
    try {
      return text(bytes);
    } catch {
      damaged();
    }
  }

  /** Where a field of a table lies; undefined when it is left out. */
  private field(table: number, place: number): number | undefined {
    this.check(table, 4);
    const offsets = table - this.view.getInt32(table, true);
    const at = 4 + 2 * place;
    if (at + 2 > this.short(offsets)) return undefined;
    const offset = this.short(offsets + at);
    return offset === 0 ? undefined : table + offset;
  }

  /** A vector of offsets; empty when the field is left out. */
  private vector(table: number, place: number): Vector {
    const field = this.field(table, place);
    if (field === undefined) return { start: 0, count: 0 };
    const start = this.indirect(field);
    const count = this.int(start);
    this.check(start + 4, 4 * count);
    return { start: start + 4, count };
  }

  /** A string or a vector of bytes; empty when the field is left out. */
  private bytes(table: number, place: number): Bytes {
    const field = this.field(table, place);
    if (field === undefined) return this.data.subarray(0, 0);
    const start = this.indirect(field);
    const count = this.int(start);
    this.check(start + 4, count);
    return this.data.subarray(start + 4, start + 4 + count);
  }

  private indirect(at: number): number {
    return at + this.int(at);
  }

  /** An unsigned number of 32 bits. */
  private int(at: number): number {
    this.check(at, 4);
    return this.view.getUint32(at, true);
  }

  private short(at: number): number {
    this.check(at, 2);
    return this.view.getUint16(at, true);
  }

  private check(at: number, size: number): void {
    if (at < 0 || at + size > this.data.length) damaged();
  }
}

function numberIn(entry: Bytes): number {
  if (entry.length !== 4) damaged();
  return new DataView(entry.buffer, entry.byteOffset, 4).getUint32(0, true);
}

function damaged(): never {
  throw new DamagedProgramError("it is damaged or cut short: load it again");
}
