import { type Decoded, integer, number, oneOf, record } from "../trainer/manifest/strict-json.ts";
import type { Stroke } from "./strokes.ts";

/**
 * How strokes become the image that the model knows, as scripts/app_assets/strokes.py describes and does it. All do the
 * same float64 operations in the same order and agree to the last bit.
 */
export type Preprocessing = Decoded<typeof preprocessing>;
export const preprocessing = record({ kind: oneOf("strokes/1"), size: integer, cells: integer, pen: number });

interface Place {
  x: number;
  y: number;
}

/** Ink 1 on paper 0, row by row, `size * size` numbers, of a drawing of at least one point. */
export function imageOf(strokes: readonly Stroke[], { size, cells, pen }: Preprocessing): Float32Array {
  const points = strokes.flat();
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, right] = bounds(xs);
  const [top, bottom] = bounds(ys);
  const side = size * cells;
  const larger = Math.max(right - left, bottom - top);
  const scale = larger > 0 ? (side - 1 - 2 * pen) / larger : 0;
  const centre = (side - 1) / 2;
  const [middleX, middleY] = [(left + right) / 2, (top + bottom) / 2];
  const inked = new Uint8Array(side * side);
  for (const stroke of strokes) {
    let a: Place | undefined;
    for (const [x, y] of stroke) {
      const b = { x: (x - middleX) * scale + centre, y: (y - middleY) * scale + centre };
      ink(inked, side, a ?? b, b, pen);
      a = b;
    }
  }
  const shares = new Float32Array(size * size);
  for (let row = 0; row < size; row++) {
    for (let column = 0; column < size; column++) {
      let count = 0;
      for (let i = 0; i < cells * cells; i++) {
        count += inked[(row * cells + Math.floor(i / cells)) * side + column * cells + (i % cells)] ?? 0;
      }
      shares[row * size + column] = count / (cells * cells);
    }
  }
  return shares;
}

function bounds(values: number[]): [least: number, most: number] {
  return values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [
    Number.POSITIVE_INFINITY,
    Number.NEGATIVE_INFINITY,
  ] as [number, number]);
}

function ink(inked: Uint8Array, side: number, a: Place, b: Place, pen: number): void {
  for (let row = 0; row < side; row++) {
    for (let column = 0; column < side; column++) {
      if (squaredDistance(column, row, a, b) <= pen * pen) inked[row * side + column] = 1;
    }
  }
}

/** Of the point (x, y) from the line between a and b. */
function squaredDistance(x: number, y: number, a: Place, b: Place): number {
  const dx = b.x - a.x;
  const dy = b.y - a.y;
  const length = dx * dx + dy * dy;
  const along = length > 0 ? Math.min(Math.max(((x - a.x) * dx + (y - a.y) * dy) / length, 0), 1) : 0;
  const ex = x - (a.x + along * dx);
  const ey = y - (a.y + along * dy);
  return ex * ex + ey * ey;
}
