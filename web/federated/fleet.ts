import type { Bytes } from "../trainer.ts";
import { EndedRoundError, FederatedError, LostServerError, RefusedRoundError, UnknownNodeError } from "./errors.ts";
import { jittered, pause } from "./http.ts";
import { Incoming, type Records } from "./incoming.ts";
import type { NodeKey } from "./key.ts";
import {
  ActivateNodeRequest,
  ActivateNodeResponse,
  ConfirmMessageReceivedRequest,
  DeactivateNodeRequest,
  type Message,
  type Metadata,
  type ObjectTree,
  PullMessagesRequest,
  PullMessagesResponse,
  PullObjectRequest,
  PullObjectResponse,
  PushMessagesRequest,
  PushMessagesResponse,
  PushObjectRequest,
  PushObjectResponse,
  RegisterNodeFleetRequest,
  SendNodeHeartbeatRequest,
  SendNodeHeartbeatResponse,
} from "./messages.ts";
import { answering, idOf, Outgoing } from "./objects.ts";
import type { Fields, MessageOf, Schema } from "./protobuf.ts";

/** Seconds between two signs of life: Flower takes a node for gone after two of them. */
export const BEAT_SECONDS = 30;
/** Milliseconds in which a node that was killed is joined again: those two, and some more. */
export const HELD = 65_000;
/** Levels of a message's objects, and objects. */
const [DEPTH, OBJECTS] = [5, 10_000];
/** Between two tries of an object that the sender still pushes, and how many. */
const [FIRST, LONGEST, TRIES] = [1000, 10_000, 30];
/** Flower's code of an error that an app raised. */
const RAISED = 2n;
const NOTHING = { metadata: undefined, content: undefined, error: undefined };

/** A message that came: its head with its id, and what it carries. */
export interface Asked {
  readonly head: Metadata;
  readonly records: Records;
}

/** One node at a SuperLink, by the calls of Flower 1.42. */
export class Fleet {
  private node = 0n;

  /**
   * `most`: bytes that all objects of a message may have together. `now`: seconds since 1970 by the server's clock. `calls`: a
   * signed request by its name, and its answer. `signal` ends waits. `taken` is told of a message that the server gives to nobody else
   * from then on. `heldMillis`: how long a key that the server does not take is tried again.
   */
  constructor(
    private readonly key: NodeKey,
    private readonly most: number,
    private readonly now: () => number,
    private readonly calls: (name: string, request: Bytes) => Promise<Bytes>,
    private readonly signal: AbortSignal,
    private readonly taken: (head: Metadata) => Promise<void> = async () => undefined,
    private readonly heldMillis = HELD,
  ) {}

  /**
   * Says that the node is there, and registers its key where it is new to the server.
   *
   * A SuperLink refuses a key as long as it takes a node with it for one that is there, as after the tab was closed: two
   * heartbeats. So long it is asked again; `say` is told so, once. Throws LostServerError: there is none, or it does not take
   * this key.
   */
  async join(say: (sentence: string) => void = () => undefined): Promise<void> {
    const end = performance.now() + this.heldMillis;
    for (let wait = FIRST; ; wait = Math.min(2 * wait, LONGEST)) {
      try {
        this.node = await this.activated();
        return;
      } catch (error) {
        if (!(error instanceof EndedRoundError)) throw error;
        const left = end - performance.now();
        if (left <= 0) throw new LostServerError(`the server does not take this client's key: ${error.message}`);
        if (wait === FIRST) {
          say("the server does not take this client's key yet: if the tab was closed, it notes that within a minute");
        }
        await pause(Math.min(wait, left), this.signal);
      }
    }
  }

  /** Says that a node is still there; one that the server does not know joins. Throws LostServerError. */
  async joinAgain(say: (sentence: string) => void = () => undefined): Promise<void> {
    let isKnown = false;
    try {
      isKnown = read(await this.calls("send-node-heartbeat", this.sign()), SendNodeHeartbeatResponse).success;
    } catch (error) {
      if (!(error instanceof EndedRoundError || error instanceof UnknownNodeError)) throw error;
    }
    if (!isKnown) await this.join(say);
  }

  private async activated(): Promise<bigint> {
    const key = this.key.publicPem;
    const once = async () => {
      const asked = ActivateNodeRequest.encode({ public_key: key, heartbeat_interval: BEAT_SECONDS });
      return read(await this.calls("activate-node", asked), ActivateNodeResponse).node_id;
    };
    try {
      return await once();
    } catch (error) {
      if (!(error instanceof EndedRoundError)) throw error;
      // Refused, the key is known, or the server takes only keys that it knows.
      await unlessEnded(() => this.calls("register-node", RegisterNodeFleetRequest.encode({ public_key: key })));
      return await once();
    }
  }

  private sign(): Bytes {
    return SendNodeHeartbeatRequest.encode({ ...this.own(), heartbeat_interval: BEAT_SECONDS });
  }

  /** Says that the node is there; a server that does not answer is left to the next call. */
  async beat(): Promise<void> {
    await ignoring(() => this.calls("send-node-heartbeat", this.sign()));
  }

  /** Says that the node goes, by a call of its own; a server that does not answer finds out by itself. */
  async leave(call: (name: string, request: Bytes) => Promise<Bytes>): Promise<void> {
    await ignoring(() => call("deactivate-node", DeactivateNodeRequest.encode({ node_id: this.node })));
  }

  /**
   * The next message, or null where there is nothing to do.
   *
   * Throws RefusedRoundError: its objects are too many, too deep, too large or not what their ids say (the server is told);
   * EndedRoundError: the run is over; LostServerError: there is no server, or it began anew (UnknownNodeError).
   */
  async pull(): Promise<Asked | null> {
    const { messages_list: messages, message_object_trees: trees } = await this.waiting();
    const [head, tree] = [messages[0]?.metadata, trees[0]];
    if (messages.length === 0) return null;
    if (!head || !tree || messages.length !== trees.length) {
      throw new RefusedRoundError("the server's message comes without its objects");
    }
    // Nobody would take an answer in that node's name.
    if (head.dst_node_id !== this.node) throw new RefusedRoundError("the server's message is for another node");
    await this.taken(head);
    try {
      const objects = await this.objects(head.run_id, tree);
      const { head: own, records } = new Incoming(objects, this.most).message(tree.object_id);
      if (!own.metadata || `${addressOf(own.metadata)}` !== `${addressOf(head)}`) {
        throw new RefusedRoundError("the server's message is not what its envelope says");
      }
      return { head: { ...own.metadata, message_id: tree.object_id }, records };
    } catch (error) {
      if (error instanceof RefusedRoundError) await this.refuse(head, error.message);
      throw error;
    }
  }

  /** Answers with records; gives how many bytes of objects the server had not yet. `seconds`: how long the work took. */
  async reply(to: Metadata, records: Outgoing, seconds: number): Promise<number> {
    return await this.push({ ...NOTHING, metadata: answering(to, this.now()) }, records, seconds);
  }

  /** Answers that a message is not done, and why. */
  async refuse(to: Metadata, why: string): Promise<void> {
    const error = { code: RAISED, reason: why };
    await this.push({ ...NOTHING, metadata: answering(to, this.now()), error }, null, 0);
  }

  private own() {
    return { node: { node_id: this.node } };
  }

  private async waiting() {
    try {
      return read(await this.calls("pull-messages", PullMessagesRequest.encode(this.own())), PullMessagesResponse);
    } catch (error) {
      if (!(error instanceof EndedRoundError)) throw error;
      throw new UnknownNodeError(`the server does not know this node: ${error.message}`);
    }
  }

  private async push(message: Message & { metadata: Metadata }, records: Outgoing | null, seconds: number) {
    const root = await Outgoing.message(message, records);
    // A message whose content is left out is answered with 500, without a word.
    const content = records ? {} : undefined;
    const head = { ...message, metadata: { ...message.metadata, message_id: root.id }, content };
    const pushed = PushMessagesRequest.encode({
      ...this.own(),
      messages_list: [head],
      message_object_trees: [root.tree()],
      clientapp_runtime_list: [seconds],
    });
    const answer = read(await this.calls("push-messages", pushed), PushMessagesResponse);
    const wanted = new Set(answer.objects_to_push);
    const sent = root.all().filter((object) => wanted.has(object.id));
    for (const { id, content } of sent) {
      const asked = PushObjectRequest.encode({
        ...this.own(),
        run_id: head.metadata.run_id,
        object_id: id,
        object_content: content,
        session_id: answer.session_id,
      });
      if (!read(await this.calls("push-object", asked), PushObjectResponse).stored) {
        throw new EndedRoundError("the server does not take the answer: the session of its upload is over");
      }
    }
    return sent.reduce((sum, object) => sum + object.content.length, 0);
  }

  /** All objects of a message by id; the server is told that they are here. */
  private async objects(run: bigint, tree: ObjectTree): Promise<Map<string, Bytes>> {
    const contents = new Map<string, Bytes>();
    let size = 0;
    for (const id of idsOf(tree).reverse()) {
      const content = await this.pulled(run, id);
      size += content.length;
      if (size > this.most) throw new RefusedRoundError(`the server's message is larger than ${this.most} bytes`);
      contents.set(id, content);
    }
    const all = { ...this.own(), run_id: run, message_object_id: tree.object_id };
    await this.calls("confirm-message-received", ConfirmMessageReceivedRequest.encode(all));
    return contents;
  }

  private async pulled(run: bigint, id: string): Promise<Bytes> {
    const asked = PullObjectRequest.encode({ ...this.own(), run_id: run, object_id: id });
    const named = `object ${id.slice(0, 16)} of the server`;
    for (let [tries, wait] = [0, FIRST]; tries < TRIES; tries++, wait = Math.min(2 * wait, LONGEST)) {
      const answer = read(await this.calls("pull-object", asked), PullObjectResponse);
      if (!answer.object_found) throw new EndedRoundError(`${named} is not there`);
      if (answer.object_available) {
        const content = answer.object_content.slice();
        if ((await idOf(content)) !== id) throw new RefusedRoundError(`${named} is not what its id says`);
        return content;
      }
      await pause(jittered(wait), this.signal);
    }
    throw new EndedRoundError(`${named} does not come`);
  }
}

/** Who says what to whom, and in which run. */
function addressOf(head: Metadata) {
  return [head.run_id, head.src_node_id, head.dst_node_id, head.message_type, head.group_id, head.reply_to_message_id];
}

/** The ids of a tree, parents first, each once. Throws RefusedRoundError where it is larger than any message. */
function idsOf(tree: ObjectTree): string[] {
  const found = new Set<string>();
  let [depth, count] = [0, 0];
  for (let level = [tree]; level.length > 0; level = level.flatMap((each) => each.children)) {
    depth++;
    count += level.length;
    if (depth > DEPTH || count > OBJECTS) {
      throw new RefusedRoundError(`the server's message has ${count} objects, ${depth} deep, or more`);
    }
    for (const each of level) found.add(each.object_id);
  }
  return [...found];
}

function read<F extends Fields>(bytes: Bytes, schema: Schema<F>): MessageOf<F> {
  try {
    return schema.decode(bytes);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw new RefusedRoundError(`the server does not answer as a SuperLink does: ${why}`);
  }
}

/** A call that the server may refuse. */
async function unlessEnded(call: () => Promise<unknown>): Promise<void> {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof EndedRoundError)) throw error;
  }
}

/** What goes wrong here the next call finds out. */
async function ignoring(call: () => Promise<unknown>): Promise<void> {
  try {
    await call();
  } catch (error) {
    if (!(error instanceof FederatedError || error instanceof DOMException)) throw error;
  }
}
