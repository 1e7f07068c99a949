"""What nets are trained for: noise and labels."""

from __future__ import annotations

import torch

from scripts.torch.steps import Task

CLASSES = 7
#: A net and its task.
Made = tuple[torch.nn.Module, Task]


def image_task(size: int, rows: int = 4, classes: int = CLASSES) -> Task:
    """Return a batch of noise and labels."""
    return task_of((3, size, size), rows=rows, classes=classes)


def task_of(shape: tuple[int, ...], rows: int = 4, classes: int = CLASSES) -> Task:
    """Return a batch of noise of the shape of a row, and labels."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(rows, *shape, generator=rng)
    return Task((x,), torch.randint(0, classes, (rows,), generator=rng), torch.nn.CrossEntropyLoss())


def token_task(length: int, words: int, rows: int = 3, classes: int = CLASSES) -> Task:
    """Return a batch of tokens and labels."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(1, words, (rows, length), generator=rng)
    return Task((x,), torch.randint(0, classes, (rows,), generator=rng), torch.nn.CrossEntropyLoss())


def language_task(length: int, words: int, rows: int = 3) -> Task:
    """Return a batch of tokens, and a token for each place."""
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randint(1, words, (2, rows, length), generator=rng)
    return Task((x,), y, torch.nn.CrossEntropyLoss())
