import { InputError, type Program } from "../trainer.ts";

/**
 * The names that patterns match, as Python's `fnmatch.fnmatchcase` reads them: `*` (also over slashes), `?`, `[a-z]`, `[!a-z]`.
 * Throws InputError: one matches nothing, or all of them match everything, so that nothing is left to share.
 */
export function personalIn(names: readonly string[], patterns: readonly string[]): Set<string> {
  const read = patterns.map(regexOf);
  const none = read.findIndex((regex) => !names.some((name) => regex.test(name)));
  if (none >= 0) {
    throw new InputError(`personal: '${patterns[none]}' matches no trained tensor. Trained are ${names.join(", ")}`);
  }
  const found = names.filter((name) => read.some((regex) => regex.test(name)));
  if (found.length > 0 && found.length === names.length) {
    throw new InputError(`personal: ${patterns.join(", ")} match all that trains, so nothing is shared`);
  }
  return new Set(found);
}

/**
 * The tensor with the names of classes that stays with their layer; null: there is none, or the layer does not stay. Throws
 * InputError: half of the layer stays.
 */
export function namesAtHome(program: Program, isOwn: (name: string) => boolean): string | null {
  const { head } = program.manifest.fields;
  if (!head?.names) return null;
  const stay = [head.kernel, head.bias].filter(isOwn);
  if (stay.length === 1) {
    throw new InputError(
      `personal: ${stay[0]} stays here and the rest of the last layer does not, which has room for classes: a class that is ` +
        `added here is in ${head.kernel} and ${head.bias}, so both stay or none`,
    );
  }
  return stay.length > 0 ? head.names : null;
}

/** A pattern as a regular expression of a whole name. */
export function regexOf(pattern: string): RegExp {
  const letters = [...pattern];
  let said = "";
  for (let at = 0; at < letters.length; at++) {
    const letter = letters[at] ?? "";
    const end = letter === "[" ? endOfSet(letters, at) : -1;
    if (end >= 0) {
      said += setOf(letters.slice(at + 1, end));
      at = end;
    } else said += letter === "*" ? ".*" : letter === "?" ? "." : exactly(letter);
  }
  return new RegExp(`^${said}$`, "su");
}

/** Where the set that begins at a bracket ends; -1: the bracket stands for itself. A bracket that comes first is one of the set. */
function endOfSet(letters: readonly string[], bracket: number): number {
  const first = letters[bracket + 1] === "!" ? bracket + 2 : bracket + 1;
  return letters.indexOf("]", first + 1);
}

function setOf(letters: readonly string[]): string {
  const isNot = letters[0] === "!";
  let ranges = "";
  for (let at = isNot ? 1 : 0; at < letters.length; ) {
    const isRange = at + 2 < letters.length && letters[at + 1] === "-";
    const [first, last] = [letters[at] ?? "", letters[isRange ? at + 2 : at] ?? ""];
    // What runs backwards is empty.
    if (codeOf(first) <= codeOf(last)) ranges += `${exactly(first)}-${exactly(last)}`;
    at += isRange ? 3 : 1;
  }
  if (ranges === "") return isNot ? "." : "(?!)";
  return `[${isNot ? "^" : ""}${ranges}]`;
}

function codeOf(letter: string): number {
  return letter.codePointAt(0) ?? 0;
}

function exactly(letter: string): string {
  return `\\u{${codeOf(letter).toString(16)}}`;
}
