"""Update schemes of one small decoder: all weights, PockEngine's sparse ones, LoRA of all products, the head.

    .venv/bin/python scripts/bench/decoders_schemes.py             # a row for each: step, memory, loss; minutes

The decoder is `small` of decoders.py, in float32 with random weights; it learns to count on (examples/llama.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from decoders import SHAPES, environment

from scripts.arguments import parser

TOKENS, STEPS = 256, 12
RULES = {
    "full": "full",
    "sparse": "sparse",
    "lora-8": {"*": 0, "layers/*/attention/*": {"lora": 8}, "layers/*/ffn/*": {"lora": 8}},
    "head": "head",
}


def main() -> None:
    """Print a table: each scheme is built and trained in processes of their own."""
    print("| scheme | numbers that train | CPU s a step | anonymous, MB | loss, first and last |")
    print("|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        for scheme in RULES:
            file = Path(folder) / f"{scheme}.tflite"
            count = int(_apart("build", scheme, file))
            seconds, memory, first, last = json.loads(_apart("train", scheme, file))
            print(f"| {scheme} | {count:,} | {seconds:.3f} | {memory:.0f} | {first:.3f} {last:.3f} |", flush=True)


def _apart(part: str, scheme: str, file: Path) -> str:
    command = [sys.executable, __file__, part, scheme, str(file)]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


def build(scheme: str, file: Path) -> None:
    """Write a program, and print how many numbers train."""
    import converter
    from examples import llama

    model = llama.build(**SHAPES["small"], length=TOKENS)
    program = converter.build(
        model,
        loss="next_token",
        optimizer="adam",
        update=RULES[scheme],
        signatures=("train",),
        target="litert-2/x86-64",
        check=False,
    )
    program.write(file)
    print(program.costs["trained_parameters"])


def train(file: Path) -> None:
    """Print seconds of the quickest step, anonymous memory in MB, the first and the last loss."""
    import time

    from decoders import resident

    from converter.runtime import TrainingSession
    from examples import llama

    losses, seconds = [], []
    with TrainingSession(file) as session:
        for step in range(STEPS):
            ids, following = llama.sample_batch(1, step, TOKENS, SHAPES["small"]["vocabulary"])
            begin = time.process_time()
            losses.append(float(session.train(ids, following)))
            seconds.append(time.process_time() - begin)
        memory = resident("RssAnon")
    print(json.dumps([min(seconds), memory, losses[0], losses[-1]]))


if __name__ == "__main__":
    if len(sys.argv) == 4:  # a process of its own, for a part
        part, scheme, name = sys.argv[1:]
        build(scheme, Path(name)) if part == "build" else train(Path(name))
    else:
        parser(__doc__).parse_args()
        main()
