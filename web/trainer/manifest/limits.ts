import { MAX_TENSOR_BYTES } from "./manifest-limits.ts";
import { type Decoder, expected, integer, isObject, list, string } from "./strict-json.ts";

const MAX_INTEGER = 2 ** 31 - 1;

/** So much of what is wrong is told. */
const MOST_TOLD = 60;

/** What a number, or how many there are of something, lies between. */
interface Bounds {
  least?: number;
  most?: number;
}

/** A whole number of 32 bits. */
export const int32: Decoder<number> = (value, where) => {
  const number = integer(value, where);
  return Math.abs(number) <= MAX_INTEGER ? number : expected("a whole number of 32 bits", where);
};

/** A number between bounds. */
export function within(decoder: Decoder<number>, bounds: Bounds): Decoder<number> {
  return (value, where) => {
    const number = decoder(value, where);
    return isWithin(number, bounds) ? number : expected(`a number ${said(bounds)}, not ${number}`, where);
  };
}

/** A string that is as a whole what a pattern says. */
export function matching(pattern: RegExp): Decoder<string> {
  return (value, where) => {
    const word = string(value, where);
    return pattern.test(word) ? word : expected(`${pattern.source}, not '${word.slice(0, MOST_TOLD)}'`, where);
  };
}

/** A list of so many. */
export function counted<T>(decoder: Decoder<T[]>, bounds: Bounds): Decoder<T[]> {
  return (value, where) => {
    const items = decoder(value, where);
    return isWithin(items.length, bounds) ? items : expected(`a list of items ${said(bounds)}`, where);
  };
}

/** A list whose items differ in a field. */
export function unique<T>(decoder: Decoder<T[]>, ...fields: (keyof T)[]): Decoder<T[]> {
  return (value, where) => {
    const items = decoder(value, where);
    for (const field of fields) {
      const seen = new Set<unknown>();
      for (const item of items) {
        if (seen.has(item[field])) expected(`'${item[field]}' to stand there once`, where);
        seen.add(item[field]);
      }
    }
    return items;
  };
}

/** The shape of a tensor of a program, which has no more axes than `rank`, of elements of so many bytes. */
export function shape(rank: number, elementBytes: number): Decoder<number[]> {
  const lengths = list(int32);
  return (value, where) => {
    const found = lengths(value, where);
    if (found.length < rank || found.some((length) => length < 1))
      expected(`a shape, not [${found.slice(0, 9)}]`, where);
    sized(found, elementBytes, where);
    return found;
  };
}

/** Throws FormatError: no tensor of a program is as large as one of a shape, of elements of so many bytes. */
export function sized(shape: readonly number[], elementBytes: number, where: string): void {
  const bytes = shape.reduce((all, length) => all * length, elementBytes);
  if (bytes > MAX_TENSOR_BYTES) expected(`a shape of less than 2 GiB, not [${shape.slice(0, 9)}]`, where);
}

/** The name of a loss, or one by output. */
export const loss: Decoder<string | Readonly<Record<string, string>>> = (value, where) => {
  if (typeof value === "string") return value;
  const names = isObject(value) ? Object.values(value) : [];
  if (names.length === 0) expected("a name, or one by output", where);
  for (const name of names) string(name, where);
  return value as Readonly<Record<string, string>>;
};

function isWithin(number: number, { least = Number.NEGATIVE_INFINITY, most = Number.POSITIVE_INFINITY }: Bounds) {
  return number >= least && number <= most;
}

function said({ least, most }: Bounds): string {
  return [least === undefined ? "" : `from ${least} on`, most === undefined ? "" : `to ${most}`].join(" ").trim();
}
