import type { JSX } from "preact";
import { type App, labelsOf, type State } from "../app.ts";
import type { Change } from "../notes.ts";
import { drawings, percent } from "../words.ts";
import { Thumbnail } from "./ink.tsx";

/** What the last training changed, and which model to use. */
export function Compare({ app, state }: { app: App; state: State }): JSX.Element {
  const { notes, model, personal, training, isBusy } = state;
  const { comparison, switched } = notes;
  const isIdle = model !== null && !training && !isBusy;
  return (
    <section class="card" aria-labelledby="compare">
      <h2 id="compare">Before and after</h2>
      <p class="quiet">{standing(state)}</p>
      {model && comparison && (
        <>
          <div class="scores">
            <Score name="Before" share={comparison.before} />
            <Score name="After" share={comparison.after} />
          </div>
          <p class="quiet">Right answers on the {drawings(comparison.heldOut)} kept aside.</p>
          <h3>{comparison.changes.length > 0 ? "Answers that changed" : "No answer changed"}</h3>
          <ul class="changes">
            {comparison.changes.map((change) => (
              <Changed key={change.drawing.id} change={change} labels={labelsOf(state)} />
            ))}
          </ul>
        </>
      )}
      <div class="row">
        {(personal || switched) && (
          <button type="button" onClick={() => app.undo()} disabled={!isIdle}>
            {switched ? "Bring it back" : "Undo"}
          </button>
        )}
        {personal && (
          <button type="button" onClick={() => app.reset()} disabled={!isIdle}>
            Reset to original
          </button>
        )}
      </div>
    </section>
  );
}

function standing({ notes, personal, model }: State): string {
  const { comparison, switched } = notes;
  if (!model) return "Once there is a model, you can compare here, and go back if you like.";
  if (comparison?.isRefused) {
    return "The new model was worse on your drawings, so the one from before stays. More drawings may help.";
  }
  if (switched === "undone") return "Undone: the model from before is in use.";
  if (switched === "reset") return "The original model is in use.";
  if (comparison) return "The new model is in use, and kept in this browser. Undo goes back one training.";
  if (personal) return "Your model was personalised earlier. You can still go back.";
  return "Personalise first; then you can compare here, and go back if you like.";
}

function Score({ name, share }: { name: string; share: number }): JSX.Element {
  return (
    <div class="score">
      <span>{name}</span>
      <strong>{percent(share)}</strong>
      <meter value={share} aria-label={`${name}: right answers`} />
    </div>
  );
}

function Changed({ change, labels }: { change: Change; labels: string[] }): JSX.Element {
  const { drawing, before, after } = change;
  const wrote = labels[drawing.label];
  const isRight = after === drawing.label;
  const note = isRight
    ? "now right"
    : before === drawing.label
      ? `now wrong; it is ${wrote}`
      : `still wrong; it is ${wrote}`;
  return (
    <li>
      <span class="thumbnail">
        <Thumbnail strokes={drawing.strokes} />
      </span>
      <span>
        {labels[before]} → {labels[after]}
      </span>
      <span class={isRight ? "good" : "bad"}>{note}</span>
    </li>
  );
}
