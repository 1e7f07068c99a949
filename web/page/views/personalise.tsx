import type { JSX } from "preact";
import { type App, canPersonalise, type Running, type State } from "../app.ts";
import { missing, toJudge, toLearn } from "../notes.ts";
import { drawings, waiting } from "../words.ts";

const [WIDTH, HEIGHT] = [320, 120];

/** One button; then the loss as it falls. */
export function Personalise({ app, state }: { app: App; state: State }): JSX.Element {
  const { notes, training } = state;
  const lacking = missing(notes);
  const summary =
    lacking > 0
      ? `${lacking} more ${lacking === 1 ? "drawing is" : "drawings are"} needed. Write each character three times or more.`
      : `${drawings(toLearn(notes).length)} to learn from, ${toJudge(notes).length} kept aside to check.`;
  return (
    <section class="card" aria-labelledby="personalise">
      <h2 id="personalise">Make it yours</h2>
      <p class="quiet">{summary}</p>
      {training ? (
        <Progress app={app} training={training} />
      ) : (
        <button type="button" class="main wide" onClick={() => app.personalise()} disabled={!canPersonalise(state)}>
          {state.model ? "Personalise" : waiting(state)}
        </button>
      )}
    </section>
  );
}

function Progress({ app, training }: { app: App; training: Running }): JSX.Element {
  const { step, steps, losses, resumedAt, isPaused, isEnding } = training;
  return (
    <>
      <progress aria-label="Steps done" value={step} max={steps || 1} />
      <p class="figures">
        <span>{steps > 0 ? `Step ${step} of ${steps}` : "Preparing…"}</span>
        <span>Loss {losses.at(-1)?.toFixed(2) ?? "–"}</span>
      </p>
      {isPaused && <p>Paused.</p>}
      {resumedAt > 0 && <p>Continues where it was interrupted, at step {resumedAt}.</p>}
      <Curve losses={losses} steps={steps - resumedAt} />
      <div class="row">
        <button type="button" onClick={() => (isPaused ? app.resume() : app.pause())} disabled={isEnding}>
          {isPaused ? "Resume" : "Pause"}
        </button>
        <button type="button" onClick={() => app.cancel()} disabled={isEnding}>
          Cancel
        </button>
      </div>
    </>
  );
}

/** Each step's loss, pale, and their running mean. */
function Curve({ losses, steps }: { losses: readonly number[]; steps: number }): JSX.Element {
  const top = Math.max(...losses, 0.1);
  const line = (values: readonly number[]) =>
    values
      .map((value, i) => `${(i / Math.max(steps - 1, 1)) * WIDTH},${HEIGHT - (value / top) * (HEIGHT - 4) - 2}`)
      .join(" ");
  let mean = losses[0] ?? 0;
  const smooth = losses.map((loss) => {
    mean += 0.15 * (loss - mean);
    return mean;
  });
  const words =
    losses.length > 0
      ? `Loss curve. It began at ${losses[0]?.toFixed(2)} and is now ${losses.at(-1)?.toFixed(2)}; lower is better.`
      : "Loss curve, empty so far.";
  return (
    <svg class="curve" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={words} preserveAspectRatio="none">
      <polyline class="pale" points={line(losses)} />
      <polyline points={line(smooth)} />
    </svg>
  );
}
