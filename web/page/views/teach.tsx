import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { type Answer, type App, labelsOf, type State } from "../app.ts";
import { percent } from "../words.ts";
import { Thumbnail } from "./ink.tsx";
import { Pad } from "./pad.tsx";

const SHOWN = 3;

interface Props {
  readonly app: App;
  readonly state: State;
}

/** Write a character, see what the models take it for, and say what it is. */
export function Teach({ app, state }: Props): JSX.Element {
  const label = labelsOf(state)[state.chosen] ?? "";
  const isEmpty = state.draft.length === 0;
  return (
    <section class="card" aria-labelledby="teach">
      <h2 id="teach">Teach it your hand</h2>
      <p class="quiet">Choose what you are about to write, then write it.</p>
      <Classes app={app} state={state} />
      <Pad
        label={label}
        strokes={state.draft}
        onStroke={(stroke) => app.addStroke(stroke)}
        onClear={() => app.clear()}
        onAdd={() => app.add()}
      />
      <div class="row">
        <button type="button" onClick={() => app.clear()} disabled={isEmpty}>
          Clear
        </button>
        <button type="button" class="main" onClick={() => app.add()} disabled={isEmpty || !state.description}>
          Add as {label}
        </button>
      </div>
      <div class="readings">
        <Reads who="Original" answers={state.reading?.original ?? []} state={state} />
        <Reads who="Yours" answers={state.reading?.personal ?? []} state={state} />
      </div>
      {state.description && state.loading !== null && (
        <p class="small">You can draw and teach already. The answers come with the model: {percent(state.loading)}.</p>
      )}
    </section>
  );
}

function Classes({ app, state }: Props): JSX.Element {
  const [isNaming, setNaming] = useState(false);
  const { notes, chosen, selected, description } = state;
  const hasSpare = description !== null && notes.symbols.length < description.spare;
  return (
    <>
      <fieldset class="classes">
        <legend class="hidden">{selected === null ? "What you write" : "What the chosen drawing is"}</legend>
        {labelsOf(state).map((name, label) => {
          const count = notes.drawings.filter((each) => each.label === label).length;
          return (
            <button
              type="button"
              class="chip"
              key={name}
              aria-pressed={label === chosen && selected === null}
              onClick={() => app.choose(label)}
            >
              {name}
              <span class="hidden">, </span>
              <small class={count > 0 ? "" : "hidden"}>
                {count}
                <span class="hidden"> {count === 1 ? "drawing" : "drawings"}</span>
              </small>
            </button>
          );
        })}
        {hasSpare && (
          <button
            type="button"
            class="chip"
            aria-label="Add a symbol of your own"
            aria-expanded={isNaming}
            onClick={() => setNaming(!isNaming)}
          >
            +
          </button>
        )}
      </fieldset>
      {isNaming && <NewSymbol app={app} onEnd={() => setNaming(false)} />}
    </>
  );
}

function NewSymbol({ app, onEnd }: { app: App; onEnd: () => void }): JSX.Element {
  const input = useRef<HTMLInputElement>(null);
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    app.addSymbol(input.current?.value.trim() ?? "");
    onEnd();
  };
  return (
    <form class="row" onSubmit={submit}>
      <label>
        <span>A symbol of your own</span>
        <input ref={input} maxLength={8} placeholder="such as ★ or A" />
      </label>
      <button type="submit">OK</button>
    </form>
  );
}

function Reads({ who, answers, state }: { who: string; answers: readonly Answer[]; state: State }): JSX.Element {
  const labels = labelsOf(state);
  const [best] = answers;
  return (
    <div class="reading">
      <h3>{who}</h3>
      <p class="best">{best ? labels[best.label] : "–"}</p>
      <ul>
        {answers.slice(0, SHOWN).map(({ label, sureness }) => (
          <li key={label}>
            <span>{labels[label]}</span>
            <meter value={sureness} aria-label={`${who}: ${labels[label]}`} />
            <span>{percent(sureness)}</span>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** What was taught; a drawing can be deleted, or be given another meaning. */
export function Gallery({ app, state, onSamples }: Props & { onSamples: () => void }): JSX.Element {
  const { notes, chosen, selected, description } = state;
  const label = labelsOf(state)[chosen] ?? "";
  const shown = notes.drawings.filter((each) => each.label === chosen);
  return (
    <section class="card" aria-labelledby="gallery">
      <h2 id="gallery">Your drawings of {label}</h2>
      {shown.length === 0 && <p class="quiet">Nothing here yet. Three or more of each character work best.</p>}
      <ul class="gallery">
        {shown.map((each, i) => (
          <li key={each.id}>
            <button
              type="button"
              class={each.heldOut ? "thumbnail pale" : "thumbnail"}
              aria-pressed={each.id === selected}
              aria-label={`Drawing ${i + 1} of ${label}${each.heldOut ? ", kept aside to check" : ""}`}
              onClick={() => app.select(each.id === selected ? null : each.id)}
            >
              <Thumbnail strokes={each.strokes} />
            </button>
          </li>
        ))}
      </ul>
      {selected !== null && (
        <div class="row">
          <p>Choose above what it really means, or delete it.</p>
          <button type="button" onClick={() => app.delete()}>
            Delete
          </button>
        </div>
      )}
      <div class="row">
        <button type="button" onClick={onSamples} disabled={!description || state.training !== null}>
          Add somebody's 40 drawings
        </button>
        {notes.drawings.length > 0 && (
          <button type="button" onClick={() => app.deleteAll()} disabled={state.training !== null}>
            Delete all
          </button>
        )}
      </div>
    </section>
  );
}
