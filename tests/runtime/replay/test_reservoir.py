"""Which rows are kept: the paper's algorithm, uniform shares, and balance; the vectors of all languages."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from converter.runtime.data.order import Random
from converter.runtime.replay.reservoir import Reservoir, Sampling
from tests.runtime.replay import vectors


def kept(labels: list[int], capacity: int, classes: int, seed: int) -> np.ndarray:
    """The numbers of the rows that are kept of a stream."""
    sampling, random, numbers = Sampling(Reservoir.empty(capacity, classes)), Random.seeded(seed), []
    for number, label in enumerate(labels):
        place = sampling.offer(label, random)
        if place is not None:
            numbers[place : place + 1] = [number]
    assert [labels[number] for number in numbers] == sampling.result().labels.tolist()
    return np.array(numbers)


class Paper:
    """Algorithm 1 of Chrysakis and Moens word for word, a list of (number, class), with the draws of a generator."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity, self.random = capacity, Random.seeded(seed)
        self.memory: list[tuple[int, int]] = []
        self.stream: dict[int, int] = {}
        self.full: set[int] = set()

    def count(self, label: int) -> int:
        return sum(each == label for _, each in self.memory)

    def largest(self) -> set[int]:
        most = max(self.count(label) for label in self.stream)
        return {label for label in self.stream if self.count(label) == most}

    def see(self, number: int, label: int) -> None:
        self.stream[label] = self.stream.get(label, 0) + 1
        if len(self.memory) < self.capacity:
            self.memory.append((number, label))
        elif label not in self.full:
            instances = [i for i, (_, each) in enumerate(self.memory) if each in self.largest()]
            self.memory[instances[self.random.next_int(len(instances))]] = (number, label)
        elif self.random.next_int(self.stream[label]) < (stored := self.count(label)):
            instances = [i for i, (_, each) in enumerate(self.memory) if each == label]
            self.memory[instances[self.random.next_int(stored)]] = (number, label)
        if len(self.memory) == self.capacity:
            self.full |= self.largest()


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_algorithm_of_the_paper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.choice(5, 300, p=[0.6, 0.25, 0.1, 0.04, 0.01]).tolist()
    paper = Paper(17, seed)
    for number, label in enumerate(labels):
        paper.see(number, label)
    assert kept(labels, 17, 5, seed).tolist() == [number for number, _ in paper.memory]


def test_of_one_class_each_row_is_kept_as_likely_as_any_other() -> None:
    counts = np.zeros(40)
    for seed in range(600):
        counts[kept([0] * 40, 8, 1, 7919 * seed)] += 1
    assert counts.sum() == 600 * 8
    # The draws of one memory depend on each other: that makes the statistic smaller, not larger.
    assert stats.chisquare(counts).pvalue > 1e-3


def test_of_each_class_each_row_is_kept_as_likely_as_any_other() -> None:
    rng = np.random.default_rng(0)
    labels = rng.permutation([0] * 60 + [1] * 30)
    counts = np.zeros(90)
    for seed in range(600):
        counts[kept(labels.tolist(), 20, 2, 104729 * seed)] += 1
    for label in (0, 1):
        of = counts[labels == label]
        assert of.sum() == pytest.approx(600 * 10, rel=0.01)
        assert stats.chisquare(of).pvalue > 1e-3


def test_rare_classes_stay_whole_and_the_others_share_what_is_left() -> None:
    labels = [0] * 500 + [1] * 200 + [2] * 5 + [0] * 500
    found = np.bincount(np.array(labels)[kept(labels, 45, 3, 3)])
    assert found.tolist() == [20, 20, 5]
    plain = np.bincount(np.array(labels)[kept([0] * len(labels), 45, 1, 3)], minlength=3)
    assert plain[0] > 30, "a plain reservoir has the shares of the stream"


@pytest.mark.parametrize("case", range(len(vectors.CASES)), ids=lambda i: vectors.CASES[i]["keeps"] + str(i))
def test_a_memory_is_that_of_all_languages(case: int) -> None:
    recorded = json.loads(vectors.FILE.read_text())["memories"]
    assert json.loads(json.dumps(vectors.vectors()))[case] == recorded[case]
