import { failureOf } from "./problems.ts";
import type { Answer, Call } from "./protocol.ts";
import { TrainerCoach } from "./trainer-coach.ts";

const tell = (answer: Answer) => postMessage(answer);
const coach = new TrainerCoach(
  (event) => tell({ event }),
  (loaded) => tell({ loaded }),
);

addEventListener("message", async ({ data }: MessageEvent<Call>) => {
  const { id, method, args } = data;
  try {
    const call = coach[method] as (...args: unknown[]) => Promise<unknown>;
    tell({ id, result: await call.apply(coach, args) });
  } catch (error) {
    const { problem, message } = failureOf(error);
    tell({ id, problem, message });
  }
});
