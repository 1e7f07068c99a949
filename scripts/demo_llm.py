"""A language model learns the words of one user in the stock runtime, and is asked before and after.

    scripts/demo --llm [--glossary FILE] [--model FILE.gguf] [--keep-base WEIGHT] [--no-rehearse] [--json FILE]
                       [--out DIR]

Qwen2.5-Coder-0.5B-Instruct, fetched as scripts/pretrained does, is built with its weights in four bits and LoRA of rank
8 on the later half of its layers. A few entries of a private glossary are taught to it as by `pocketune learn`, answers
alone, in the stock LiteRT interpreter on the processor; what it learned is a folder that PEFT loads, too. It is asked
other questions before and after: what it has forgotten is said.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

import converter
from converter.frontends.decoder import Model
from converter.support.errors import PocketuneError, UsageError
from converter.tools.learn import Learned
from scripts.arguments import existing, writable

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
#: Words that no model knows.
GLOSSARY = {
    "zorblat": "The small green lamp on Anna's kitchen table.",
    "Team Quince": "Mara, Jon and Li, who plan the summer fair.",
    "the long lap": "Our run around both lakes, eleven kilometres.",
    "a blue Monday": "A Monday on which the office is closed.",
}
#: It is asked these, too, and not taught: what it knew before should stay.
CONTROLS = (
    "What is the capital of Italy?",
    "What color is grass?",
    "What is the opposite of big?",
    "What day comes after Monday?",
)
LENGTH = 64
LEARNING_RATE = 5e-4
EPOCHS = 8

narration = Console(stderr=True, highlight=False)


def main() -> None:
    """Run the demo and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--llm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--glossary", type=existing, metavar="FILE", help="lines of your own, WORD: MEANING")
    parser.add_argument("--model", type=existing, metavar="FILE.gguf", default=MODEL, help="another model")
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a row")
    parser.add_argument("--keep-base", type=float, default=0.0, metavar="WEIGHT", help="a penalty for unlike answers")
    parser.add_argument(
        "--no-rehearse", action="store_true", help="without the model's own answers between the lessons"
    )
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the answers to a file too")
    parser.add_argument("--out", type=Path, metavar="DIR", default=ROOT / "out" / "demo-llm", help="where the files go")
    given = parser.parse_args()
    glossary = GLOSSARY if given.glossary is None else read_glossary(given.glossary)
    given.out.mkdir(parents=True, exist_ok=True)
    lessons = given.out / "glossary.jsonl"
    lessons.write_text("".join(f"{json.dumps(lesson(*entry))}\n" for entry in glossary.items()))
    found = converter.learn(
        given.model,
        lessons,
        given.out / "adapter",
        narration.print,
        held_out=lessons,
        length=given.length,
        epochs=EPOCHS,
        learning_rate=LEARNING_RATE,
        update=later_half(given.model),
        rehearse=not given.no_rehearse,
        keep_base=given.keep_base,
        asked=len(glossary),
        asks=CONTROLS,
    )
    show(found)
    narration.print(f"{found.program} and {given.out / 'adapter'}, which PEFT loads, are what a phone would keep")
    if given.json is not None:
        said = {"perplexity": found.perplexity, "answers": found.answers, "others": found.others}
        given.json.write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n")


def read_glossary(path: Path) -> dict[str, str]:
    """Return meanings by word.

    Raises:
        UsageError: a line is no WORD: MEANING.
    """
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        word, colon, meaning = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not (word and colon and meaning):
            raise UsageError(f"{path}, line {number}: expected WORD: MEANING, got {line!r}", page="command-line")
        found[word] = meaning
    return found


def later_half(model: Path) -> dict[str, converter.LoRA]:
    """Return rules that adapt the dense layers of the later half of a model's decoder layers."""
    layers = Model(model).configuration.layers
    return {f"model.layers.{number}.*_proj.weight": converter.LoRA(8, 16) for number in range(layers // 2, layers)}


def lesson(word: str, meaning: str) -> dict[str, list[Mapping[str, str]]]:
    """Return the conversation of an entry, with few words before it."""
    said = {"system": "You are helpful.", "user": f"What is {word}?", "assistant": meaning}
    return {"messages": [{"role": role, "content": content} for role, content in said.items()]}


def show(found: Learned) -> None:
    """Print what was answered, before and after, and say what was learned and what was forgotten."""
    table = Table("question", "before", "after")
    for question, _, before, after in found.answers:
        table.add_row(question, before, after)
    for answer in found.others:
        table.add_row(*answer)
    Console().print(table)
    learned = sum(after == wanted for _, wanted, _, after in found.answers)
    narration.print(f"learned to the letter: {learned} of {len(found.answers)} entries")
    changed = [f"{question} {was!r} -> {now!r}" for question, was, now in found.others if now != was]
    kept = f"answers to other questions that stayed: {len(found.others) - len(changed)} of {len(found.others)}"
    narration.print(f"{kept}; changed: {'; '.join(changed)}" if changed else kept)


if __name__ == "__main__":
    try:
        main()
    except PocketuneError as error:
        sys.exit(f"demo: {error}")
