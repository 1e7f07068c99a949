import type { Random } from "../session/random.ts";

/** No more rows of a class are counted. */
export const MOST_SEEN = 2 ** 31 - 1;

/** What is known of the rows that a memory keeps, beside their numbers. */
export interface Reservoir {
  /** How many rows it has room for. */
  readonly capacity: number;
  /** The class of each. */
  readonly labels: readonly number[];
  /** How many rows of each class came. */
  readonly seen: readonly number[];
  /** Which classes had the most rows at some time since there was no room left. */
  readonly full: readonly boolean[];
}

/** One that nothing was offered to. */
export function emptyReservoir(capacity: number, classes: number): Reservoir {
  return { capacity, labels: [], seen: Array(classes).fill(0), full: Array(classes).fill(false) };
}

/** One without the rows of a class, as if none of it had come. */
export function withoutLabel({ capacity, labels, seen, full }: Reservoir, label: number): Reservoir {
  return {
    capacity,
    labels: labels.filter((each) => each !== label),
    seen: seen.map((count, i) => (i === label ? 0 : count)),
    full: full.map((mark, i) => mark && i !== label),
  };
}

/**
 * Class-balanced reservoir sampling (CBRS of Chrysakis and Moens, ICML 2020, algorithm 1): which rows of an endless stream
 * a bounded memory keeps. Of one class it is the plain reservoir.
 */
export class Balancing {
  private readonly capacity: number;
  private readonly labels: number[];
  private readonly seen: number[];
  private readonly full: boolean[];
  private readonly counts: number[];

  constructor(reservoir: Reservoir) {
    this.capacity = reservoir.capacity;
    this.labels = [...reservoir.labels];
    this.seen = [...reservoir.seen];
    this.full = [...reservoir.full];
    this.counts = this.seen.map(() => 0);
    for (const label of this.labels) this.count(label, 1);
  }

  /** The place that a row of a class takes, that of a row that it replaces or the next; null: it is left. */
  offer(label: number, random: Random): number | null {
    this.seen[label] = Math.min((this.seen[label] ?? 0) + 1, MOST_SEEN);
    const place = this.labels.length < this.capacity ? this.labels.length : this.place(label, random);
    if (place === null) return null;
    const before = this.labels[place];
    if (before !== undefined) this.count(before, -1);
    this.labels[place] = label;
    this.count(label, 1);
    if (this.labels.length === this.capacity) {
      const most = largest(this.counts);
      for (const [i, count] of this.counts.entries()) if (count === most) this.full[i] = true;
    }
    return place;
  }

  private place(label: number, random: Random): number | null {
    if (this.full[label]) {
      if (random.nextInt(this.seen[label] ?? 0) >= (this.counts[label] ?? 0)) return null;
      return drawn(
        this.places((each) => each === label),
        random,
      );
    }
    const most = largest(this.counts);
    return drawn(
      this.places((each) => this.counts[each] === most),
      random,
    );
  }

  private places(isOne: (label: number) => boolean): number[] {
    return [...this.labels.keys()].filter((place) => isOne(this.labels[place] ?? 0));
  }

  private count(label: number, more: number): void {
    this.counts[label] = (this.counts[label] ?? 0) + more;
  }

  /** The reservoir after all that was offered. */
  result(): Reservoir {
    return { capacity: this.capacity, labels: [...this.labels], seen: [...this.seen], full: [...this.full] };
  }
}

function drawn(places: number[], random: Random): number | null {
  return places[random.nextInt(places.length)] ?? null;
}

function largest(counts: number[]): number {
  return counts.reduce((most, count) => Math.max(most, count), 0);
}
