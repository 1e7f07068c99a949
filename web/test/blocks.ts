import { readdirSync, readFileSync } from "node:fs";

/** A block of code for browsers in the documentation. */
export interface Block {
  readonly page: string;
  readonly line: number;
  readonly language: string;
  readonly text: string;
  /** The file that its first line says it is: `// name.ts` or `<!-- name.html -->`. */
  readonly file: string | null;
  /** Why it is left out. */
  readonly skipped: string | null;
  /** What the page says in the end, where it is one. */
  readonly says: string | null;
}

const LANGUAGES = new Set(["ts", "js", "html"]);
const ROOT = "..";

/** The blocks of a page, from the top. */
export function blocksOf(page: string, text: string): Block[] {
  const blocks: Block[] = [];
  const lines = text.split("\n");
  let marks: Record<string, string> = {};
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at] ?? "";
    const [, mark, words] = /^\s*<!-- (skip|says): next "(.+)" -->$/.exec(line) ?? [];
    if (mark && words) marks[mark] = words;
    const [, indent, language] = /^( *)```(\w+)$/.exec(line) ?? [];
    if (indent === undefined || !language) continue;
    const end = lines.indexOf(`${indent}\`\`\``, at);
    const code = lines.slice(at + 1, end).map((each) => each.slice(indent.length));
    const [, file] = /^(?:\/\/|<!--) ([\w.]+\.\w+)(?: -->)?$/.exec(code[0] ?? "") ?? [];
    if (LANGUAGES.has(language)) {
      const { skip, says } = marks;
      const found = { page, line: at + 1, language, text: `${code.join("\n")}\n`, file: file ?? null };
      blocks.push({ ...found, skipped: skip ?? null, says: says ?? null });
    }
    marks = {};
    at = end;
  }
  return blocks;
}

/** All blocks for browsers in what is written by hand: README.md, docs/ and the package's own page. */
export function allBlocks(): Block[] {
  const docs = readdirSync(`${ROOT}/docs`, { recursive: true, encoding: "utf8" }).filter((name) =>
    name.endsWith(".md"),
  );
  const pages = ["README.md", "web/README.md", ...docs.sort().map((name) => `docs/${name}`)];
  return pages.flatMap((page) => blocksOf(page, readFileSync(`${ROOT}/${page}`, "utf8")));
}
