import type { TrainEvent } from "../trainer.ts";
import { type Answer, type Call, type Coach, Failure } from "./protocol.ts";

type Waiting = { resolve: (result: unknown) => void; reject: (error: Failure) => void };

/** The coach in a worker, so that the page never stands still while a model trains. */
export function remoteCoach(
  script: string,
  onEvent: (event: TrainEvent) => void,
  onLoaded: (share: number) => void,
): Coach {
  const worker = new Worker(script);
  const waiting = new Map<number, Waiting>();
  let calls = 0;
  let isHeard = false;
  /** Why the worker never ran. */
  let broken: Failure | undefined;
  worker.addEventListener("message", ({ data }: MessageEvent<Answer>) => {
    isHeard = true;
    if ("event" in data) return onEvent(data.event);
    if ("loaded" in data) return onLoaded(data.loaded);
    const call = waiting.get(data.id);
    waiting.delete(data.id);
    if ("problem" in data) call?.reject(new Failure(data.problem, data.message));
    else call?.resolve(data.result);
  });
  worker.addEventListener("error", (event) => {
    event.preventDefault();
    // A script that did not come makes an event without a message.
    const failure = event.message
      ? new Failure("runtime", event.message)
      : new Failure("offline", `${script} did not come`);
    if (!isHeard) broken = failure;
    for (const call of waiting.values()) call.reject(failure);
    waiting.clear();
  });
  const call = (method: keyof Coach, ...args: unknown[]) =>
    new Promise((resolve, reject) => {
      if (broken) return void reject(broken);
      const id = ++calls;
      waiting.set(id, { resolve, reject });
      worker.postMessage({ id, method, args } as Call);
    });
  return new Proxy({} as Coach, {
    get:
      (_, method) =>
      (...args: unknown[]) =>
        call(method as keyof Coach, ...args),
  });
}
