import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { PAPER, type Point, type Stroke, tenth } from "../strokes.ts";
import { Ink } from "./ink.tsx";

const STEP = 50;
const SMALL_STEP = 10;
const MOVES: Record<string, readonly [number, number]> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

interface Props {
  readonly label: string;
  readonly strokes: readonly Stroke[];
  readonly onStroke: (stroke: Stroke) => void;
  readonly onClear: () => void;
  readonly onAdd: () => void;
}

/** A sheet to write on: with the mouse, a finger or a pen, or with the arrow keys. */
export function Pad({ label, strokes, onStroke, onClear, onAdd }: Props): JSX.Element {
  const [growing, setGrowing] = useState<Stroke>([]);
  const [cursor, setCursor] = useState<readonly [number, number] | null>(null);
  const sheet = useRef<HTMLDivElement>(null);
  const began = useRef(0);
  /** What was drawn so far, for events that come before the next rendering. */
  const points = useRef<Point[]>([]);

  const grow = (places: readonly (readonly [number, number])[], time: number) => {
    if (strokes.length === 0 && points.current.length === 0) began.current = time;
    const millis = Math.round(time - began.current);
    points.current = [...points.current, ...places.map(([x, y]): Point => [tenth(x), tenth(y), millis])];
    setGrowing(points.current);
  };
  const end = () => {
    const stroke = points.current;
    points.current = [];
    setGrowing([]);
    if (stroke.length > 0) onStroke(stroke);
  };

  const place = (event: PointerEvent): [number, number] => {
    const { left, top, width } = (sheet.current as HTMLDivElement).getBoundingClientRect();
    return [((event.clientX - left) / width) * PAPER, ((event.clientY - top) / width) * PAPER];
  };
  const down = (event: PointerEvent) => {
    if (!event.isPrimary || event.button !== 0) return;
    sheet.current?.setPointerCapture(event.pointerId);
    setCursor(null);
    grow([place(event)], event.timeStamp);
  };
  const move = (event: PointerEvent) => {
    if (!event.isPrimary || cursor || points.current.length === 0) return;
    const all = event.getCoalescedEvents?.() ?? [];
    grow((all.length > 0 ? all : [event]).map(place), event.timeStamp);
  };

  const key = (event: KeyboardEvent) => {
    const direction = MOVES[event.key];
    const isDown = points.current.length > 0;
    const [x, y] = cursor ?? [PAPER / 2, PAPER / 2];
    if (direction) {
      const step = event.shiftKey ? SMALL_STEP : STEP;
      const [right, lower] = direction.map((d) => d * step) as [number, number];
      const next = [clamped(x + right), clamped(y + lower)] as const;
      setCursor(next);
      if (isDown) grow([next], event.timeStamp);
    } else if (event.key === " ") {
      setCursor([x, y]);
      if (isDown) end();
      else grow([[x, y]], event.timeStamp);
    } else if (event.key === "Enter") {
      if (isDown) end();
      else onAdd();
    } else if (event.key === "Backspace" || event.key === "Delete") {
      points.current = [];
      setGrowing([]);
      onClear();
    } else return;
    event.preventDefault();
  };

  const help = "Arrow keys move the pen, space puts it down and lifts it, enter adds the drawing, backspace clears.";
  return (
    <div
      ref={sheet}
      class="pad"
      role="application"
      aria-roledescription="writing area"
      aria-label={`Write ${label} here. ${help}`}
      // biome-ignore lint/a11y/noNoninteractiveTabindex: it is drawn on with the keyboard
      tabIndex={0}
      onPointerDown={down}
      onPointerMove={move}
      onPointerUp={() => !cursor && end()}
      onPointerCancel={() => !cursor && end()}
      onKeyDown={key}
      onBlur={() => setCursor(null)}
    >
      {strokes.length === 0 && growing.length === 0 && <span class="hint">Write {label} here</span>}
      <svg viewBox={`0 0 ${PAPER} ${PAPER}`} aria-hidden="true">
        <Ink strokes={[...strokes, growing]} />
        {cursor && (
          <circle class={growing.length > 0 ? "cursor down" : "cursor"} cx={cursor[0]} cy={cursor[1]} r="34" />
        )}
      </svg>
    </div>
  );
}

function clamped(place: number): number {
  return Math.min(Math.max(place, 0), PAPER);
}
