import { BinaryReader, BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import type { Bytes } from "../trainer.ts";

/** A message within another is read so deep. */
const DEEPEST = 100;

/** How the values of a type are written and read. Methods, so that fields of any type make up a message. */
interface Kind<T> {
  readonly wire: WireType;
  write(to: BinaryWriter, value: T): void;
  read(from: BinaryReader, depth: number): T;
}

const big = (value: bigint | string) => BigInt(value);

export const uint64: Kind<bigint> = {
  wire: WireType.Varint,
  write: (to, value) => void to.uint64(value),
  read: (from) => big(from.uint64()),
};
export const sint64: Kind<bigint> = {
  wire: WireType.Varint,
  write: (to, value) => void to.sint64(value),
  read: (from) => big(from.sint64()),
};
export const bool: Kind<boolean> = {
  wire: WireType.Varint,
  write: (to, value) => void to.bool(value),
  read: (from) => from.bool(),
};
export const double: Kind<number> = {
  wire: WireType.Bit64,
  write: (to, value) => void to.double(value),
  read: (from) => from.double(),
};
export const string: Kind<string> = {
  wire: WireType.LengthDelimited,
  write: (to, value) => void to.string(value),
  read: (from) => from.string(true),
};
export const bytes: Kind<Uint8Array> = {
  wire: WireType.LengthDelimited,
  write: (to, value) => void to.bytes(value),
  read: (from) => from.bytes(),
};
/** The numbers of a repeated field, in one piece. */
export const packedDoubles: Kind<number[]> = {
  wire: WireType.LengthDelimited,
  write: (to, value) => {
    to.fork();
    for (const each of value) to.double(each);
    to.join();
  },
  read: (from) => {
    const end = from.uint32() + from.pos;
    const found: number[] = [];
    while (from.pos < end) found.push(from.double());
    return found;
  },
};

/** A message in a field of another; a function, so that one can hold its own kind. */
export function nested<F extends Fields>(schema: () => Schema<F>): Kind<MessageOf<F>> {
  return {
    wire: WireType.LengthDelimited,
    write: (to, value) => {
      to.fork();
      schema().write(to, value);
      to.join();
    },
    read: (from, depth) => schema().read(from, from.uint32(), depth + 1),
  };
}

/** A field of a message: `start` is what it is before anything was read. */
export interface Field<T> {
  readonly number: number;
  start(): T;
  write(to: BinaryWriter, value: T): void;
  /** The value with one more that was read; `wire` says how that was written. */
  read(from: BinaryReader, wire: WireType, before: T, depth: number): T;
}

/** A value that is left out where it is `empty`. */
export function one<T>(number: number, kind: Kind<T>, empty: T): Field<T> {
  const { start: _, ...maybe } = optional(number, kind);
  const isEmpty = (value: T) => value === empty || (value instanceof Uint8Array && value.length === 0);
  return {
    ...maybe,
    start: () => empty,
    write: (to, value) => (isEmpty(value) ? undefined : maybe.write(to, value)),
    read: (from, wire, before, depth) => maybe.read(from, wire, before, depth) as T,
  };
}

/** A value that is there or not. */
export function optional<T>(number: number, kind: Kind<T>): Field<T | undefined> {
  return {
    number,
    start: () => undefined,
    write: (to, value) => {
      if (value !== undefined) kind.write(to.tag(number, kind.wire), value);
    },
    read: (from, wire, before, depth) => {
      if (wire === kind.wire) return kind.read(from, depth);
      from.skip(wire, number);
      return before;
    },
  };
}

/** Any number of values. */
export function many<T>(number: number, kind: Kind<T>): Field<T[]> {
  const each = optional(number, kind);
  return {
    number,
    start: () => [],
    write: (to, values) => {
      for (const value of values) each.write(to, value);
    },
    read: (from, wire, before, depth) => {
      const value = each.read(from, wire, undefined, depth);
      if (value !== undefined) before.push(value);
      return before;
    },
  };
}

export type Fields = Record<string, Field<unknown>>;

/** The values of a message, by the names of its fields. */
export type MessageOf<F extends Fields> = { [K in keyof F]: F[K] extends Field<infer T> ? T : never };

/** A message of protocol buffers, written in the order of its fields; what is not known is skipped. */
export class Schema<F extends Fields> {
  private readonly byNumber: Map<number, [string, Field<unknown>]>;

  constructor(readonly fields: F) {
    this.byNumber = new Map(Object.entries(fields).map(([name, field]) => [field.number, [name, field]]));
  }

  /** A message with some values; the others are empty. */
  of(values: Partial<MessageOf<F>>): MessageOf<F> {
    const empty = Object.entries(this.fields).map(([name, field]) => [name, field.start()]);
    return { ...Object.fromEntries(empty), ...values };
  }

  encode(values: Partial<MessageOf<F>>): Bytes {
    const writer = new BinaryWriter();
    this.write(writer, this.of(values));
    return writer.finish();
  }

  /** Throws RangeError or Error: the bytes are no message. */
  decode(bytes: Uint8Array): MessageOf<F> {
    return this.read(new BinaryReader(bytes), bytes.length, 1);
  }

  write(to: BinaryWriter, values: MessageOf<F>): void {
    for (const [name, field] of Object.entries(this.fields)) field.write(to, values[name]);
  }

  read(from: BinaryReader, length: number, depth: number): MessageOf<F> {
    const end = from.pos + length;
    if (end > from.len) throw new RangeError("it is cut short");
    if (depth > DEEPEST) throw new RangeError(`messages within messages, more than ${DEEPEST} deep`);
    const values: Record<string, unknown> = this.of({});
    while (from.pos < end) {
      const [number, wire] = from.tag();
      const [name, field] = this.byNumber.get(number) ?? [];
      if (name !== undefined && field) values[name] = field.read(from, wire, values[name], depth);
      else from.skip(wire, number);
    }
    if (from.pos !== end) throw new RangeError("a field is cut short");
    return values as MessageOf<F>;
  }
}
