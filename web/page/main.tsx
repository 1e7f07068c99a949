import { type JSX, render } from "preact";
import { integer, list, parse, record } from "../trainer/manifest/strict-json.ts";
import { App, type State } from "./app.ts";
import { Notebook } from "./notebook.ts";
import { remoteCoach } from "./remote-coach.ts";
import { strokes } from "./strokes.ts";
import { Compare } from "./views/compare.tsx";
import { Files } from "./views/files.tsx";
import { Personalise } from "./views/personalise.tsx";
import { Gallery, Teach } from "./views/teach.tsx";
import { PROBLEMS } from "./words.ts";

const drawings = record({ drawings: list(record({ label: integer, strokes })) });

function Page({ app, state }: { app: App; state: State }): JSX.Element {
  return (
    <>
      {state.problem && (
        <div class="problem" role="alert">
          <p>{PROBLEMS[state.problem]}</p>
          <button type="button" onClick={() => app.dismiss()}>
            Dismiss
          </button>
        </div>
      )}
      <div class="columns">
        <div>
          <Teach app={app} state={state} />
        </div>
        <div>
          <Personalise app={app} state={state} />
          <Compare app={app} state={state} />
        </div>
        <div>
          <Gallery app={app} state={state} onSamples={addSamples} />
          <Files app={app} state={state} />
        </div>
      </div>
      <p class="hidden" role="status">
        {state.said}
      </p>
    </>
  );
}

const main = document.querySelector("main") as HTMLElement;
const app = new App(
  new Notebook(),
  (onEvent, onLoaded) => remoteCoach("worker.js", onEvent, onLoaded),
  (state) => render(<Page app={app} state={state} />, main),
);

async function addSamples(): Promise<void> {
  const response = await fetch("hand.json");
  app.addAll(drawings(parse(new Uint8Array(await response.arrayBuffer())), "hand.json").drawings);
}

await app.open();
// Behind the model, so that they do not compete for the connection; what was loaded comes from the browser's own cache.
await navigator.serviceWorker?.register("service-worker.js");
