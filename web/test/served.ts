import { FederatedClient, NodeKey, type Participant, type Served, type ServeOptions } from "../federated.ts";
import { type Replay, rows } from "./recorded.ts";

/** A call that is answered once with another code than 200. */
export type Refusal = [name: string, code: number];

/** What a call meets instead of the replay's answer, or `undefined`; an error is that of a connection. */
type Instead = (name: string, headers: Headers) => Response | undefined;

/** Refuses calls, each once. */
export function refusing(refusals: Refusal[]): Instead {
  return (name) => {
    const refusal = refusals.find(([refused]) => refused === name);
    if (!refusal) return undefined;
    refusals.splice(refusals.indexOf(refusal), 1);
    return new Response("no", { status: refusal[1] });
  };
}

/** What a client does at a server that answers as a replay, but for `instead`. */
export async function served(
  own: Participant,
  replay: Replay,
  options: ServeOptions,
  instead: Instead = () => undefined,
  patienceMillis = 300_000,
): Promise<Served> {
  const fetched = globalThis.fetch;
  globalThis.fetch = async (url, { body, headers } = {}) => {
    const name = String(url).split("/").at(-1) ?? "";
    const other = instead(name, new Headers(headers));
    return other ?? new Response(await replay.call(name, new Uint8Array(body as Uint8Array<ArrayBuffer>)));
  };
  try {
    const link = { address: "http://127.0.0.1:1", patienceMillis };
    const client = new FederatedClient(own, link, await NodeKey.generate());
    return await client.serve(() => ({ samples: rows() }), options);
  } finally {
    globalThis.fetch = fetched;
  }
}
