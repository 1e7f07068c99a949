import { type Bytes, messageOf, PocketuneError, type Sample } from "../trainer.ts";
import { EndedRoundError, FederatedError, LostServerError, RefusedRoundError, UnknownNodeError } from "./errors.ts";
import { type Asked, BEAT_SECONDS, Fleet, HELD } from "./fleet.ts";
import { Http, jittered, pause, type SuperLink } from "./http.ts";
import type { NodeKey } from "./key.ts";
import { Metadata } from "./messages.ts";
import { Outgoing } from "./objects.ts";
import type { Participant } from "./participant.ts";
import { configOf, type Figures, metricsOf } from "./values.ts";

/** The user's rows, and those to judge by: the same where they are left out. */
export interface Rows {
  readonly samples: readonly Sample[];
  readonly heldOut?: readonly Sample[];
}

/** What a client did: messages that it answered with numbers, why it did not answer others, and bytes that left the device. */
export interface Served {
  readonly messages: number;
  readonly errors: readonly string[];
  readonly bytes: number;
}

/** How a client takes part. */
export interface ServeOptions {
  /** It ends when there was no work for so long; never where it is left out. */
  readonly idleMillis?: number;
  /** Between two questions whether there is work, give or take a fifth; 3000. Minutes for many pages. */
  readonly pollMillis?: number;
  /** Ends it: a round that runs is left, and the server goes on with the others. */
  readonly signal?: AbortSignal;
  /** Is told of each round in a sentence. */
  readonly say?: (sentence: string) => void;
}

/** Bytes of a message beside its arrays, and how often what the arrays may have is in it. */
const [BESIDE, TIMES] = [2 ** 20, 4];
/** Runs of which something is kept: the server names the runs. */
const RUNS = 8;
/** Messages that are known again. */
const ANSWERED = 64;
const LEAVE = 5000;
const POLL = 3000;

/**
 * A client of an unmodified Flower SuperLink 1.42, for a page's worker. The server's Python app is never fetched: what runs is the
 * program, whatever the server sends.
 */
export class FederatedClient {
  private readonly most: number;
  private readonly http: Http;
  /** What stays here from round to round, by run: `Trained.kept`. */
  private readonly kept = new Map<bigint, ReadonlyMap<string, Bytes>>();

  /** `key` is kept by the page (`NodeKey.kept`); the client registers it where it is new to the server. Throws TypeError. */
  constructor(
    private readonly participant: Participant,
    private readonly link: SuperLink,
    private readonly key: NodeKey,
  ) {
    this.most = BESIDE + TIMES * participant.exchange.bytes(true);
    this.http = new Http(link, key, this.most);
  }

  /**
   * Takes part in the rounds of the server, until there was no work for `idleMillis` or the signal ends it, which is no error.
   * `rows` are read anew for each message. Throws LostServerError: there is no server, or it does not take this client.
   */
  async serve(rows: () => Promise<Rows> | Rows, options: ServeOptions = {}): Promise<Served> {
    const ended = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, ended.signal]) : ended.signal;
    const calls = (name: string, request: Bytes) => this.http.call(name, request, signal);
    const taken = (head: Metadata) => this.participant.note(Metadata.encode(head));
    const held = Math.min(this.link.patienceMillis ?? HELD, HELD);
    const fleet = new Fleet(this.key, this.most, () => this.http.now(), calls, signal, taken, held);
    const { say } = options;
    // Not as a method of anything, which `postMessage` would refuse.
    const sitting = new Sitting(fleet, this.participant, this.kept, signal, (sentence) => say?.(sentence));
    try {
      await fleet.join((sentence) => say?.(sentence));
      await sitting.leave();
      void beats(fleet, signal);
      await sitting.rounds(rows, options.idleMillis ?? Number.POSITIVE_INFINITY, options.pollMillis ?? POLL);
    } catch (error) {
      if (!options.signal?.aborted || error !== options.signal.reason) throw error;
    } finally {
      ended.abort();
      await fleet.leave((name, request) => this.http.call(name, request, AbortSignal.timeout(LEAVE)));
    }
    return sitting.served;
  }
}

/** Signs of life until the signal. */
async function beats(fleet: Fleet, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await pause(BEAT_SECONDS * 1000 * (0.6 + 0.2 * Math.random()), signal).catch(() => undefined);
    if (!signal.aborted) await fleet.beat().catch(() => undefined);
  }
}

/** One `serve`. */
class Sitting {
  /** Ids of messages that were answered with numbers: training twice would move what stays here twice. */
  private readonly answered = new Set<string>();
  private messages = 0;
  private bytes = 0;
  private readonly errors: string[] = [];
  /** When there was last something to do, by `performance.now`. */
  private busy = 0;

  constructor(
    private readonly fleet: Fleet,
    private readonly participant: Participant,
    private readonly kept: Map<bigint, ReadonlyMap<string, Bytes>>,
    private readonly signal: AbortSignal,
    private readonly say: (sentence: string) => void,
  ) {}

  get served(): Served {
    return { messages: this.messages, errors: this.errors, bytes: this.bytes };
  }

  /**
   * A message that was taken when the tab was closed is answered with an error: the server has others do it, and does not wait
   * for this node, which is there again.
   */
  async leave(): Promise<void> {
    const unanswered = await this.participant.unanswered();
    if (!unanswered) return;
    try {
      await this.fleet.refuse(Metadata.decode(unanswered), "the client ended in the midst of this, and leaves it");
      this.note("left a message that was not answered when this client ended");
    } catch (error) {
      const isLost = error instanceof LostServerError && !(error instanceof UnknownNodeError);
      // Of another error the run is over.
      if (!(error instanceof FederatedError) || isLost) throw error;
    }
    await this.participant.note(null);
  }

  async rounds(rows: () => Promise<Rows> | Rows, idleMillis: number, pollMillis: number): Promise<void> {
    this.busy = performance.now();
    for (;;) {
      const asked = await this.pulled();
      if (!asked) {
        if (performance.now() - this.busy >= idleMillis) return;
        await pause(jittered(pollMillis), this.signal);
        continue;
      }
      try {
        await this.answer(asked, await rows());
      } catch (error) {
        // A server that began anew is joined again when it is asked next.
        const isOver = [UnknownNodeError, RefusedRoundError, EndedRoundError].some((kind) => error instanceof kind);
        if (!isOver) throw error;
        this.note(messageOf(error));
      }
      await this.participant.note(null);
      this.busy = performance.now();
    }
  }

  private async pulled(): Promise<Asked | null> {
    try {
      const asked = await this.fleet.pull();
      if (!asked || !this.answered.has(asked.head.message_id)) return asked;
      this.note("the server sent a message again that was answered: it is left out");
      await this.participant.note(null);
      return null;
    } catch (error) {
      const isUnknown = error instanceof UnknownNodeError;
      if (!(error instanceof FederatedError) || (error instanceof LostServerError && !isUnknown)) throw error;
      this.note(error.message);
      if (isUnknown) {
        await this.fleet.joinAgain(this.say);
        this.busy = performance.now();
      } else {
        await this.participant.note(null);
      }
      return null;
    }
  }

  private async answer(asked: Asked, rows: Rows): Promise<void> {
    const begun = performance.now();
    let records: Outgoing;
    try {
      records = await this.records(asked, rows);
    } catch (error) {
      this.signal.throwIfAborted();
      // Whatever is wrong with the message, the rows or the runtime: the server goes on with the others.
      const isKnown = error instanceof FederatedError || error instanceof PocketuneError;
      const why = isKnown ? error.message : String(error);
      await this.fleet.refuse(asked.head, why);
      this.note(`answered with an error: ${why}`);
      return;
    }
    const sent = await this.fleet.reply(asked.head, records, (performance.now() - begun) / 1000);
    this.messages++;
    this.bytes += sent;
    this.answered.add(asked.head.message_id);
    for (const old of [...this.answered].slice(0, -ANSWERED)) this.answered.delete(old);
    this.say(`${asked.head.message_type}: ${sent} bytes left this device`);
  }

  private async records({ head, records }: Asked, rows: Rows): Promise<Outgoing> {
    const kind = head.message_type;
    if (kind === "query") {
      const config = await Outgoing.of("ConfigRecord", configOf(this.participant.describe(rows.samples)));
      return await Outgoing.records(null, { config });
    }
    const [[arrays, ...moreArrays], [config, ...moreConfigs]] = [
      [...records.arrays.values()],
      [...records.configs.values()],
    ];
    if (!arrays || !config || moreArrays.length + moreConfigs.length > 0) {
      const came = `${records.arrays.size} records of arrays and ${records.configs.size} records of config`;
      throw new RefusedRoundError(`the server sent ${came}, and one of each is expected`);
    }
    const metrics = async (figures: Figures) => ({ metrics: await Outgoing.of("MetricRecord", metricsOf(figures)) });
    const before = this.kept.get(head.run_id) ?? new Map();
    if (kind === "evaluate") {
      const judged = rows.heldOut ?? rows.samples;
      const figures = await this.participant.evaluate(arrays, config, judged, before);
      return await Outgoing.records(null, await metrics(figures));
    }
    if (kind !== "train") {
      throw new RefusedRoundError(`the server asks for '${kind}', which this client does not do`);
    }
    const trained = await this.participant.train(arrays, config, rows.samples, before, this.signal);
    this.kept.delete(head.run_id);
    this.kept.set(head.run_id, trained.kept);
    for (const run of [...this.kept.keys()].slice(0, -RUNS)) this.kept.delete(run);
    return await Outgoing.records(trained.arrays, await metrics(trained.figures));
  }

  private note(why: string): void {
    this.errors.push(why);
    this.say(why);
  }
}
