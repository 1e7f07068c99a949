import type { JSX } from "preact";
import { PAPER, type Stroke } from "../strokes.ts";

/** Strokes, as lines. A stroke of one point is a dot. */
export function Ink({ strokes }: { strokes: readonly Stroke[] }): JSX.Element {
  return (
    <g class="ink">
      {strokes.map((stroke, i) => (
        <polyline key={i} points={[...stroke, ...stroke.slice(-1)].map(([x, y]) => `${x},${y}`).join(" ")} />
      ))}
    </g>
  );
}

/** A small picture of a drawing. */
export function Thumbnail({ strokes }: { strokes: readonly Stroke[] }): JSX.Element {
  return (
    <svg viewBox={`0 0 ${PAPER} ${PAPER}`} aria-hidden="true">
      <Ink strokes={strokes} />
    </svg>
  );
}
