"""Phones that are killed in the midst of an upload, at a leaf that is killed too; run in Flower's environment.

    python -m tests.federated.runs.killed PORT COUNT OUT.npz

COUNT phones take part in rounds at 127.0.0.1:PORT until the standard input ends. Every third answer breaks off after
its first object, and its phone starts again. OUT.npz then has of each round the arrays that came (`NUMBER/came/NAME`),
and NumPy's mean of what all phones answer (`NUMBER/mean/NAME`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.proto import recorddict_pb2

from tests.federated.light import Answer, Arrays, Phone, Refused, mean, read, update


class Crowd:
    """Phones in threads.

    Attributes:
        came: arrays by round.
        refused: what the leaf said where it did not take a call, and how often.
    """

    def __init__(self, port: int, count: int) -> None:
        self.came: dict[int, Arrays] = {}
        self.refused: Counter[str] = Counter()
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._phone, args=(port, k)) for k in range(count)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _phone(self, port: int, k: int) -> None:
        phone, rng = Phone(port), np.random.default_rng(k)
        while not phone.node and not self._done.is_set():
            self._trying(phone.join)
        while not self._done.is_set():
            self._trying(lambda: self._once(phone, k, rng.random() < 1 / 3))
            time.sleep(0.1)

    def _trying(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (Refused, OSError) as error:  # a leaf that is not there is asked again for as long as this runs
            self.refused[str(error)[:90]] += 1
            time.sleep(0.3)

    def _once(self, phone: Phone, k: int, breaks_off: bool) -> None:
        found = phone.pull()
        if found is None:
            return
        head, objects = found
        arrays, kinds = read(objects)
        if head.metadata.message_type == "evaluate":
            phone.push(Answer.to(head, None, {"num-examples": 1, "loss": 1.0}))
            return
        number = number_of(kinds["ConfigRecord"])
        self.came.setdefault(number, arrays)
        assert all((arrays[name] == array).all() for name, array in self.came[number].items()), "one round, one start"
        moved, rows = answer(k, number, arrays)
        sent = Answer.to(head, moved, {"num-examples": rows, "loss": 1.0})
        if breaks_off:
            phone.push(sent, most=1)
            phone.activate()
        else:
            phone.push(sent)


def number_of(config: bytes) -> int:
    """The round of a config."""
    items = {item.key: item.value for item in recorddict_pb2.ConfigRecord.FromString(config).items}
    return int(items["server-round"].sint64)


def answer(k: int, number: int, arrays: Arrays) -> tuple[Arrays, int]:
    """What a phone sends in a round, however often it is asked."""
    return update(1000 * number + k, arrays)


def main(port: int, count: int, out: Path) -> None:
    crowd = Crowd(port, count)
    sys.stdin.read()
    crowd.end()
    kept: dict[str, np.ndarray] = {}
    for number, arrays in crowd.came.items():
        means = mean([answer(k, number, arrays) for k in range(count)])
        for what, found in {"came": arrays, "mean": means}.items():
            kept |= {f"{number}/{what}/{name}": one for name, one in found.items()}
    with out.open("wb") as file:
        np.savez(file, allow_pickle=False, **kept)
    print(dict(crowd.refused))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
