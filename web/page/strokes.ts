import { type Decoder, integer, list, number } from "../trainer/manifest/strict-json.ts";

/** A place that the pen passed: to the right and downwards in any unit, and milliseconds since the drawing began. */
export type Point = readonly [x: number, y: number, millis: number];

/** What was drawn without lifting the pen. */
export type Stroke = readonly Point[];

/** Side of the square in which strokes live, whatever its size on the screen. */
export const PAPER = 1000;

/** The pen is not more exact than that. */
export function tenth(value: number): number {
  return Math.round(value * 10) / 10;
}

const point: Decoder<Point> = (value, where) => {
  const [x = Number.NaN, y = Number.NaN, millis] = list(number)(value, where);
  return [x, y, integer(millis, where)];
};

export const strokes: Decoder<Stroke[]> = list(list(point));
