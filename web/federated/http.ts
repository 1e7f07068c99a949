import { type Bytes, messageOf } from "../trainer.ts";
import { EndedRoundError, LostServerError, RefusedRoundError, UnknownNodeError } from "./errors.ts";
import { base64, type NodeKey } from "./key.ts";

/** Where a server is, and how long it is waited for. */
export interface SuperLink {
  /** `https://HOST`, or `http://` on this machine; the page's own origin where it is left out. */
  readonly address?: string;
  /** Without TLS also on another machine: whoever is between reads what travels. */
  readonly insecure?: boolean;
  /** How long a server that does not answer is waited for; 300,000. */
  readonly patienceMillis?: number;
}

const TYPE = "application/protobuf";
const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"];
const BUSY = [502, 503, 504];
const [OK, UNAUTHORIZED] = [200, 401];
const PATIENCE = 300_000;
/** Of one call. */
const LONGEST_CALL = 60_000;
/** Between two tries. */
const [FIRST, LONGEST] = [1000, 30_000];
/** Bytes of an error that are read, and characters that are told. */
const [ERROR, SAID] = [4096, 300];

interface Answer {
  readonly code: number;
  readonly body: Bytes;
  /** When it was sent, by the server's clock, in milliseconds since 1970; NaN where that is not said. */
  readonly date: number;
}

/** Signed calls, with a bound on what an answer may hold; it is read no further than that. */
export class Http {
  private readonly address: string;
  /** What the server's clock shows more than this one, in milliseconds. */
  private ahead = 0;

  /** `most`: bytes of an answer. Throws TypeError: the address is none, or without TLS. */
  constructor(
    private readonly link: SuperLink,
    private readonly key: NodeKey,
    private readonly most: number,
  ) {
    const url = new URL(link.address ?? globalThis.location?.origin);
    if (url.protocol !== "https:" && !link.insecure && !LOOPBACK.includes(url.hostname)) {
      throw new TypeError(`${link.address} has no TLS: use https, or insecure: true`);
    }
    this.address = url.origin;
  }

  /** Seconds since 1970 by the server's clock. */
  now(): number {
    return (Date.now() + this.ahead) / 1000;
  }

  /**
   * The answer to a request, tried again with longer and longer waits.
   *
   * Throws EndedRoundError: the server does not do it; UnknownNodeError: it does not take the signature; LostServerError:
   * there is none; RefusedRoundError: the answer is too large; `signal.reason`.
   */
  async call(name: string, request: Bytes, signal: AbortSignal): Promise<Bytes> {
    const end = performance.now() + (this.link.patienceMillis ?? PATIENCE);
    for (let wait = FIRST; ; wait = Math.min(2 * wait, LONGEST)) {
      signal.throwIfAborted();
      let reason: string;
      try {
        const answer = await this.once(name, request, signal);
        if (!BUSY.includes(answer.code)) return this.taken(name, answer);
        reason = `HTTP ${answer.code}`;
      } catch (error) {
        signal.throwIfAborted();
        // What fetch says of a connection, and a call that took too long.
        if (!(error instanceof TypeError || error instanceof DOMException)) throw error;
        reason = messageOf(error);
      }
      const left = end - performance.now();
      if (left <= 0) throw new LostServerError(`no SuperLink answers at ${this.address}: ${reason}`);
      await pause(Math.min(jittered(wait), left), signal);
    }
  }

  private taken(name: string, { code, body }: Answer): Bytes {
    if (code === OK) return body;
    if (code === UNAUTHORIZED) {
      throw new UnknownNodeError(
        `${this.address} does not take this client's signature: have the server's operator register its key`,
      );
    }
    const said = new TextDecoder().decode(body).slice(0, SAID);
    throw new EndedRoundError(`${name}: the server answers HTTP ${code}: ${said}`);
  }

  /** One try; a second one where the clocks differ. */
  private async once(name: string, request: Bytes, signal: AbortSignal): Promise<Answer> {
    const first = await this.send(name, request, signal);
    if (first.code !== UNAUTHORIZED || Number.isNaN(first.date)) return first;
    this.ahead = first.date - Date.now();
    return await this.send(name, request, signal);
  }

  private async send(name: string, body: Bytes, signal: AbortSignal): Promise<Answer> {
    const time = new Date(Date.now() + this.ahead).toISOString().replace("Z", "000+00:00");
    const response = await fetch(`${this.address}/v1/fleet/${name}`, {
      method: "POST",
      headers: {
        accept: TYPE,
        "content-type": TYPE,
        "flwr-public-key": base64(this.key.publicPem),
        "flwr-timestamp": time,
        "flwr-signature": base64(await this.key.sign(new TextEncoder().encode(time))),
      },
      body,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.any([signal, AbortSignal.timeout(LONGEST_CALL)]),
    });
    const code = response.status;
    const date = Date.parse(response.headers.get("date") ?? "");
    return { code, body: await read(response, code === OK ? this.most : ERROR), date };
  }
}

/** The body of an answer, of an error its beginning. Throws RefusedRoundError: it is larger than `most` bytes. */
async function read(response: Response, most: number): Promise<Bytes> {
  const pieces: Uint8Array[] = [];
  let size = 0;
  const reader = response.body?.getReader();
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    size += value.length;
    if (size <= most) continue;
    await reader.cancel();
    if (!response.ok) break;
    throw new RefusedRoundError(`an answer of the server is larger than ${most} bytes`);
  }
  return joined(pieces);
}

/** The pieces, one behind the other. */
export function joined(pieces: readonly Uint8Array[]): Bytes {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

/** Give or take a fifth. */
export function jittered(millis: number): number {
  return millis * (0.8 + 0.4 * Math.random());
}

/** Waits. Throws `signal.reason`. */
export async function pause(millis: number, signal: AbortSignal): Promise<void> {
  signal.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const stopped = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stopped);
      resolve();
    }, millis);
    signal.addEventListener("abort", stopped, { once: true });
  });
}
