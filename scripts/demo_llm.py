"""A language model learns the words of one person in the stock runtime, and is asked before and after.

    scripts/demo --llm [--glossary FILE] [--model FILE.gguf] [--json FILE] [--out DIR]

Qwen2.5-Coder-0.5B-Instruct, fetched as scripts/pretrained does, is built with its weights in four bits and LoRA of rank
8 on the later half of its layers. A few entries of a private glossary are taught to it, answers alone, in the stock
LiteRT interpreter on the processor; what it learned is a folder that PEFT loads, too. It is asked other questions
before and after: what it has forgotten is said.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import converter
from converter.runtime import TrainingSession, export_adapter, generate, rows_of_texts
from converter.support.errors import PocketuneError, UsageError
from converter.support.extras import require
from decoder_frontend import Model, Tokenizer
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
    "What is the capital of France?",
    "What color is the sky?",
    "What is the opposite of hot?",
    "What day comes after Monday?",
)
#: Its own answers to these are rehearsed between the entries, so that it does not take every question for one of them.
REHEARSED = ("What is two plus three?", "What is water?", "Who wrote Hamlet?", "What is a dog?")
LENGTH = 64
LEARNING_RATE = 5e-4
#: It has learned when the loss of each entry is below this.
LEARNED = 0.05
MOST_EPOCHS = 16

narration = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Answer:
    """A question, what should be said, and what is, before and after."""

    question: str
    wanted: str
    before: str
    after: str


def main() -> None:
    """Run the demo and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--llm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--glossary", type=existing, metavar="FILE", help="lines of your own, WORD: MEANING")
    parser.add_argument("--model", type=existing, metavar="FILE.gguf", default=MODEL, help="another model")
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of a row")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the answers to a file too")
    parser.add_argument("--out", type=Path, metavar="DIR", default=ROOT / "out" / "demo-llm", help="where the files go")
    given = parser.parse_args()
    require("safetensors", "the adapter that this demo writes")
    glossary = GLOSSARY if given.glossary is None else read_glossary(given.glossary)
    given.out.mkdir(parents=True, exist_ok=True)
    program, tokenizer = built(given.model, given.length, given.out), Tokenizer(given.model)
    questions = {f"What is {word}?": meaning for word, meaning in glossary.items()}
    with TrainingSession(program) as session:
        before = {question: asked(session, tokenizer, question) for question in (*questions, *CONTROLS)}
        rehearsed = {question: asked(session, tokenizer, question) for question in REHEARSED}
        losses = taught(session, tokenizer, questions, rehearsed, given.length)
        after = {question: asked(session, tokenizer, question) for question in (*questions, *CONTROLS)}
        state = session.state()
    export_adapter(program, given.out / "adapter", state)
    answers = [Answer(q, questions.get(q, ""), before[q], after[q]) for q in before]
    show(answers)
    narration.print(f"{program} and {given.out / 'adapter'}, which PEFT loads, are what a phone would keep")
    if given.json is not None:
        said = {"losses": losses, "answers": [asdict(answer) for answer in answers]}
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


def built(model: Path, length: int, folder: Path) -> Path:
    """Return the program of a model; the one that is there where it is newer."""
    path = folder / f"{model.stem}-{length}-later-half.tflite"
    if path.exists() and path.stat().st_mtime > model.stat().st_mtime:
        narration.print(f"{path} is built already")
        return path
    narration.print(f"building {model.name}: its weights in four bits, LoRA of rank 8; a few minutes")
    started = time.perf_counter()
    program = converter.build(
        model,
        length=length,
        batch=1,
        update=later_half(model),
        frozen="int4-blockwise",
        blocks="on",
        optimizer="adam",
        signatures=("train", "generate"),
    )
    program.write(path)
    narration.print(f"built in {time.perf_counter() - started:.0f} s: {path.stat().st_size / 1e6:.0f} MB")
    return path


def later_half(model: Path) -> dict[str, converter.LoRA]:
    """Return rules that adapt the dense layers of the later half of a model's decoder layers."""
    layers = Model(model).configuration.layers
    return {f"model.layers.{number}.*_proj.weight": converter.LoRA(8, 16) for number in range(layers // 2, layers)}


def asked(session: TrainingSession, tokenizer: Tokenizer, question: str) -> str:
    """Return what a model answers."""
    prompt = tokenizer.prompt(messages(question))
    started, ids = time.perf_counter(), list(generate(session, prompt, most=24, stop=tokenizer.ends))
    answer = tokenizer.decode(ids).strip()
    narration.print(
        f"  {question} {answer!r} ({(len(prompt) + len(ids)) / (time.perf_counter() - started):.1f} tokens/s)"
    )
    return answer


def messages(question: str) -> list[Mapping[str, str]]:
    """Return a conversation of one question, with few words before it."""
    return [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": question}]


def taught(
    session: TrainingSession,
    tokenizer: Tokenizer,
    entries: Mapping[str, str],
    rehearsed: Mapping[str, str],
    length: int,
) -> list[float]:
    """Teach a session what to answer, and return the mean loss of the entries in each epoch."""
    lessons = [*entries.items(), *rehearsed.items()]
    told = [tokenizer.conversation([*messages(q), {"role": "assistant", "content": a}]) for q, a in lessons]
    x, y = rows_of_texts([one.ids for one in told], length, [one.answers for one in told])
    losses, order = list[float](), np.random.default_rng(0)
    for epoch in range(MOST_EPOCHS):
        started, each = time.perf_counter(), np.zeros(len(x))
        for row in order.permutation(len(x)):
            each[row] = session.train(x[row : row + 1], y[row : row + 1], LEARNING_RATE)
        losses.append(float(each[: len(entries)].mean()))
        seconds = (time.perf_counter() - started) / len(x)
        narration.print(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, {seconds:.1f} s a step")
        if each[: len(entries)].max() < LEARNED:
            break
    return losses


def show(answers: list[Answer]) -> None:
    """Print what was answered, before and after, and say what was learned and what was forgotten."""
    table = Table("question", "before", "after")
    for answer in answers:
        table.add_row(answer.question, answer.before, answer.after)
    Console().print(table)
    taught = [answer for answer in answers if answer.wanted]
    learned = sum(answer.after == answer.wanted for answer in taught)
    narration.print(f"learned to the letter: {learned} of {len(taught)} entries")
    others = [answer for answer in answers if not answer.wanted]
    changed = [f"{one.question} {one.before!r} -> {one.after!r}" for one in others if one.after != one.before]
    kept = f"answers to other questions that stayed: {len(others) - len(changed)} of {len(others)}"
    narration.print(f"{kept}; changed: {'; '.join(changed)}" if changed else kept)


if __name__ == "__main__":
    try:
        main()
    except PocketuneError as error:
        sys.exit(f"demo: {error}")
