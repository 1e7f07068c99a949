import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import type { App, State } from "../app.ts";
import { kilobytes } from "../words.ts";

const NAME = "digits.state";

/** The person's model as a file, to and from the phone, the host or another browser. */
export function Files({ app, state }: { app: App; state: State }): JSX.Element {
  const chooser = useRef<HTMLInputElement>(null);
  const isIdle = state.model !== null && !state.training && !state.isBusy;
  const save = async () => {
    const file = await app.exportState();
    if (!file) return;
    const url = URL.createObjectURL(new Blob([file]));
    Object.assign(document.createElement("a"), { href: url, download: NAME }).click();
    setTimeout(() => URL.revokeObjectURL(url));
  };
  const take = async () => {
    const file = chooser.current?.files?.[0];
    if (file) await app.importState(new Uint8Array(await file.arrayBuffer()));
    if (chooser.current) chooser.current.value = "";
  };
  return (
    <section class="card" aria-labelledby="files">
      <h2 id="files">Your model elsewhere</h2>
      <p class="quiet">
        What it learned is one small file. The Pocketune app on a phone, Python and other browsers read it and write it.
      </p>
      <div class="row">
        <button type="button" onClick={save} disabled={!isIdle}>
          Save to a file
        </button>
        <button type="button" onClick={() => chooser.current?.click()} disabled={!isIdle}>
          Take from a file
        </button>
        <input ref={chooser} class="hidden" type="file" tabIndex={-1} aria-label="State file" onChange={take} />
      </div>
      {state.model && (
        <p class="small">
          {state.model.report.runtime} on{" "}
          {state.model.report.runs === "wasm" ? "the processor" : "the graphics processor"}; a state takes{" "}
          {kilobytes(state.model.stateBytes)}.
        </p>
      )}
    </section>
  );
}
