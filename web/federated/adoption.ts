import type { Bytes, Trainer } from "../trainer.ts";
import { calledOf } from "./identity.ts";
import { namesAtHome } from "./patterns.ts";

/**
 * What becomes of a user's state when others have trained the same model. `mine`: nothing changes. `shared`: all that trains is
 * as the server sent it. `both`: the base is as the server sent it, what is the user's own stays (FedPer).
 */
export type Take = "mine" | "shared" | "both";

/**
 * Takes a shared state (`Participant.shared`) over into the user's own, and saves it as a generation, whose number it gives;
 * `rollback` undoes it. The optimizer begins anew. Null where nothing changed. `isOwn` says with `both` whether a tensor is the
 * user's own, by the model's name: `(name) => name.startsWith("head/")`. The names of classes stay with a last layer that has
 * room for them.
 */
export async function adopt(
  trainer: Trainer,
  shared: Bytes,
  take: Take,
  isOwn: (name: string) => boolean = () => false,
): Promise<number | null> {
  if (take === "mine") return null;
  const mine = await trainer.tensors();
  try {
    await trainer.restore(shared);
    if (take === "both") {
      const own = trainer.program.manifest.stateTensors.filter((it) => !it.slot && isOwn(calledOf(it)));
      const names = new Set([...own.map((it) => it.tensor), namesAtHome(trainer.program, isOwn)]);
      await trainer.putTensors(new Map([...mine].filter(([name]) => names.has(name))));
    }
    return await trainer.save();
  } catch (error) {
    await trainer.putTensors(mine);
    throw error;
  }
}
