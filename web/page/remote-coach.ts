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
  worker.addEventListener("message", ({ data }: MessageEvent<Answer>) => {
    if ("event" in data) return onEvent(data.event);
    if ("loaded" in data) return onLoaded(data.loaded);
    const call = waiting.get(data.id);
    waiting.delete(data.id);
    if ("problem" in data) call?.reject(new Failure(data.problem, data.message));
    else call?.resolve(data.result);
  });
  worker.addEventListener("error", (event) => {
    event.preventDefault();
    for (const call of waiting.values()) call.reject(new Failure("runtime", event.message));
    waiting.clear();
  });
  const call = (method: keyof Coach, ...args: unknown[]) =>
    new Promise((resolve, reject) => {
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
