import type { Bytes } from "../trainer.ts";
import { ConfigRecord, MetricRecord } from "./messages.ts";

/** An entry of a server's config: whole numbers are bigints. What has another type is null. */
export type Entry = number | bigint | boolean | string | null;

/** Figures of a reply: whole numbers are bigints, the others numbers. */
export type Figures = Record<string, number | bigint>;

/** The entries of a server's config. Throws RangeError and Error: it is none. */
export function configIn(body: Bytes): Map<string, Entry> {
  return new Map(
    ConfigRecord.decode(body).items.map(({ key, value }) => [
      key,
      value?.double ?? value?.sint64 ?? value?.uint64 ?? value?.bool ?? value?.string ?? null,
    ]),
  );
}

/** A config with texts and whole numbers. */
export function configOf(said: Record<string, string | bigint>): Bytes {
  const items = Object.entries(said).map(([key, what]) => {
    const empty = { double: undefined, sint64: undefined, uint64: undefined, bool: undefined, string: undefined };
    return { key, value: { ...empty, ...(typeof what === "string" ? { string: what } : { sint64: what }) } };
  });
  return ConfigRecord.encode({ items });
}

/** A record of figures. */
export function metricsOf(figures: Figures): Bytes {
  const items = Object.entries(figures).map(([key, figure]) => ({
    key,
    value: typeof figure === "bigint" ? { double: undefined, sint64: figure } : { double: figure, sint64: undefined },
  }));
  return MetricRecord.encode({ items });
}
