import { SLACK } from "../manifest/manifest-limits.ts";
import type { TargetLabels } from "../manifest/manifest-records.ts";
import type { Values } from "../program/samples.ts";

/** What is wrong with a target for its loss, in words; undefined when nothing is. */
export function problemOf(known: TargetLabels, loss: string, target: Values): string | undefined {
  if (target instanceof Int32Array) {
    const bad = target.find((label) => !isLabel(known, label));
    const last = (known.count ?? 0) - 1;
    return bad === undefined ? undefined : `labels go from 0 to ${last} in this program, and this is ${bad}`;
  }
  if (target instanceof Uint8Array) return undefined;
  const bad = target.find((number) => !isNumber(known, number));
  return bad === undefined ? undefined : `${loss} takes ${wordsOf(known)}, and this holds ${bad}`;
}

/** Whether a label is one of those that a target holds, or that its loss leaves out. */
export function isLabel({ count, masked, ignored }: TargetLabels, label: number): boolean {
  return label === ignored || (label < (count ?? Number.POSITIVE_INFINITY) && (masked || label >= 0));
}

function isNumber({ least, most, only }: TargetLabels, number: number): boolean {
  if (only.length > 0) return only.some((each) => Math.fround(each) === number);
  return (least === null || number >= least - SLACK) && (most === null || number <= most + SLACK);
}

/** Which numbers are such. */
function wordsOf({ count, least, most, only, advice }: TargetLabels): string {
  let said = least === null ? "numbers" : `numbers from ${least} on`;
  if (most !== null) said = `numbers ${least === null ? "" : `from ${least} `}to ${most}`;
  if (only.length > 0) said = only.join(" or ");
  return `${said}${count === null ? "" : ", one a class"}${advice && ` (${advice})`}`;
}
