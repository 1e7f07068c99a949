import { text } from "../bytes.ts";

/** What a file that is not trusted says is not as agreed. */
export class FormatError extends Error {}

/** Takes a parsed value if it is of its type. `where` names it for the user. */
export type Decoder<T> = (value: unknown, where: string) => T;

/** What a decoder gives. */
export type Decoded<D> = D extends Decoder<infer T> ? T : never;

/** JSON in UTF-8. Throws FormatError: it is none, or a field is missing, unknown or of another type. */
export function decode<T>(decoder: Decoder<T>, bytes: Uint8Array, where: string): T {
  return decoder(parse(bytes), where);
}

/** Brackets within brackets, and brackets and commas in all: what the readers in all languages take. */
const [MAX_DEPTH, MAX_VALUES] = [64, 300_000];

/** Any JSON in UTF-8 whose numbers are finite. Throws FormatError. */
export function parse(bytes: Uint8Array): unknown {
  try {
    const json = text(bytes);
    checkBounds(json);
    return JSON.parse(json, (_, value) =>
      Number.isFinite(value ?? 0) || typeof value !== "number" ? value : infinite(),
    );
  } catch (error) {
    // Not UTF-8, or not JSON.
    throw error instanceof FormatError || error instanceof SyntaxError
      ? new FormatError(error.message)
      : new FormatError("not JSON in UTF-8");
  }
}

function checkBounds(json: string): void {
  let [depth, values] = [0, 0];
  for (const [sign] of json.replace(/"(?:[^"\\]|\\.)*"/gs, "").matchAll(/[[\]{},]/g)) {
    if (sign === "[" || sign === "{") depth++;
    if (sign === "]" || sign === "}") depth--;
    else values++;
    if (depth > MAX_DEPTH) throw new FormatError("nested too deeply");
    if (values > MAX_VALUES) throw new FormatError(`more than ${MAX_VALUES} values`);
  }
}

function infinite(): never {
  throw new FormatError("a number is not finite");
}

/** Throws FormatError: `where` there is something else. */
export function expected(what: string, where: string): never {
  throw new FormatError(`${where}: expected ${what}`);
}

export const string: Decoder<string> = (value, where) =>
  typeof value === "string" ? value : expected("a string", where);

export const number: Decoder<number> = (value, where) =>
  typeof value === "number" ? value : expected("a number", where);

export const bool: Decoder<boolean> = (value, where) =>
  typeof value === "boolean" ? value : expected("true or false", where);

/** A whole number that needs no rounding, however it is written: 8, 8.0, 8e0. */
export const integer: Decoder<number> = (value, where) =>
  // Minus zero becomes zero.
  Number.isSafeInteger(value) ? (value as number) + 0 : expected("a whole number", where);

/** A value that is looked at later. */
export const anything: Decoder<unknown> = (value) => value;

/** An object of any fields. */
export const object: Decoder<Record<string, unknown>> = (value, where) =>
  isObject(value) ? value : expected("an object", where);

/** One of some words. */
export function oneOf<const W extends string>(...words: W[]): Decoder<W> {
  return (value, where) => words.find((word) => word === value) ?? expected(`one of ${words.join(", ")}`, where);
}

export function nullable<T>(decoder: Decoder<T>): Decoder<T | null> {
  return (value, where) => (value === null ? null : decoder(value, where));
}

export function list<T>(decoder: Decoder<T>): Decoder<T[]> {
  return (value, where) =>
    Array.isArray(value) ? value.map((item, i) => decoder(item, `${where}[${i}]`)) : expected("a list", where);
}

/** An object whose fields are all of one type, as a map in its order. */
export function mapOf<T>(decoder: Decoder<T>): Decoder<Map<string, T>> {
  return (value, where) =>
    new Map(Object.entries(object(value, where)).map(([name, item]) => [name, decoder(item, `${where}.${name}`)]));
}

type Fields = Record<string, Decoder<unknown>>;
type Required<F extends Fields> = { [K in keyof F]: Decoded<F[K]> };
type Optional<F extends Fields> = { [K in keyof F]?: Decoded<F[K]> };
type Filled<T> = { [K in keyof T]-?: T[K] };

/** An object of exactly these fields; those of `optional` may be left out. */
export function record<F extends Fields, O extends Fields = Record<never, never>>(
  fields: F,
  optional: O = {} as O,
): Decoder<Required<F> & Optional<O>> {
  return (value, where) => {
    const given = object(value, where);
    const known = { ...optional, ...fields };
    for (const name of Object.keys(given)) if (!Object.hasOwn(known, name)) expected(`no field '${name}'`, where);
    for (const name of Object.keys(fields)) if (!Object.hasOwn(given, name)) expected(`the field '${name}'`, where);
    const read = Object.keys(given).map((name) => [name, known[name]?.(given[name], `${where}.${name}`)]);
    return Object.fromEntries(read) as Required<F> & Optional<O>;
  };
}

/** What a decoder reads, with fields that are left out as they are in `defaults`. */
export function filled<T extends object>(decoder: Decoder<T>, defaults: Partial<T>): Decoder<Filled<T>> {
  return (value, where) => ({ ...defaults, ...decoder(value, where) }) as Filled<T>;
}

/** The same, unless what is read is not as agreed. */
export function checked<T>(decoder: Decoder<T>, check: (read: T, where: string) => void): Decoder<T> {
  return (value, where) => {
    const read = decoder(value, where);
    check(read, where);
    return read;
  };
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
