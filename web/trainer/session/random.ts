const MULTIPLIER = 0x5deece66dn;
const BITS = 48;
/** What is between the seeds of the same epoch of two seeds. */
const EPOCHS_APART = 1_000_003n;

/** java.util.Random, so that a seed gives the same orders and draws here and on the phone. */
export class Random {
  private state: bigint;

  constructor(seed: bigint) {
    this.state = BigInt.asUintN(BITS, seed ^ MULTIPLIER);
  }

  /** That of an epoch, from 0, of a training with a seed. */
  static ofEpoch(seed: number, epoch: number): Random {
    return new Random(BigInt.asIntN(64, BigInt(seed) * EPOCHS_APART + BigInt(epoch)));
  }

  /** One that goes on from a state that `present` gave. */
  static at(state: number): Random {
    const random = new Random(0n);
    random.state = BigInt(state);
    return random;
  }

  /** Its state, below 2^48. */
  get present(): number {
    return Number(this.state);
  }

  /** A whole number from 0 to below `bound`. */
  nextInt(bound: number): number {
    if ((bound & -bound) === bound) return Number((BigInt(bound) * BigInt(this.next(31))) >> 31n);
    for (;;) {
      const bits = this.next(31);
      const value = bits % bound;
      // Leaves out the last, incomplete run of numbers, as Java does by an overflow.
      if (bits - value + (bound - 1) < 2 ** 31) return value;
    }
  }

  /** A number from 0 to below 1. */
  nextDouble(): number {
    return (this.next(26) * 2 ** 27 + this.next(27)) * 2 ** -53;
  }

  /** A whole number of at most 31 bits. */
  private next(bits: number): number {
    this.state = BigInt.asUintN(BITS, this.state * MULTIPLIER + 0xbn);
    return Number(this.state >> BigInt(BITS - bits));
  }
}

/** Fisher and Yates. */
export function shuffled<T>(items: readonly T[], random: Random): T[] {
  const order = [...items];
  for (let i = order.length - 1; i >= 1; i--) {
    const j = random.nextInt(i + 1);
    [order[i], order[j]] = [order[j] as T, order[i] as T];
  }
  return order;
}
