import type { Tensor } from "./npy.ts";

type Arrays = ReadonlyMap<string, Tensor>;

/**
 * What leaves a device of which the server's config asks for clipping, as Flower's `fixedclipping_mod` does it: the change of all
 * arrays together has at most this L2 norm.
 */
export function clipped(sent: Arrays, taken: Arrays, norm: number): Map<string, Tensor> {
  const before = (name: string, i: number) => taken.get(name)?.numbers[i] ?? 0;
  let total = 0;
  for (const [name, { numbers }] of sent) {
    numbers.forEach((number, i) => {
      total += (number - before(name, i)) ** 2;
    });
  }
  const factor = Math.min(1, norm / Math.sqrt(total));
  return new Map(
    [...sent].map(([name, { shape, numbers }]) => {
      const moved = (number: number, i: number) => before(name, i) + factor * (number - before(name, i));
      return [name, { shape, numbers: numbers.map(moved) }];
    }),
  );
}
