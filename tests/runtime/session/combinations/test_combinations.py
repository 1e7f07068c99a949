"""Random programs with class means, and a random course of what a session does with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from converter.runtime import TrainingSession
from tests.runtime.session.combinations.drawn import BATCH, KINDS, OWN, drawn, net, program_of, rows_of
from tests.runtime.session.combinations.judged import Judged

#: What a session may do, and so many courses of that.
_DONE = ("steps", "means", "discriminant", "add", "forget", "rename", "store", "export")
_COURSES = 40


@pytest.mark.quick
def test_a_course_of_each_kind_of_net_is_that_of_its_oracles(tmp_path: Path) -> None:
    for seed in range(len(KINDS)):
        _judge(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(KINDS), _COURSES))
def test_a_random_course_is_that_of_its_oracles(seed: int, tmp_path: Path) -> None:
    _judge(seed, tmp_path)


def _judge(seed: int, tmp_path: Path) -> None:
    one = drawn(seed)
    program, head = program_of(one, tmp_path)
    rng = np.random.default_rng(seed)
    x = rows_of(one, BATCH, rng)
    with TrainingSession(program, head=head) as session:
        begun = session.infer(x)
        assert begun.shape == (BATCH, one.total)
        if one.frozen == "float32" and one.kind != "file":  # a file has a fresh last layer
            model = net(one)
            wanted = model.apply(model.params, x / np.float32(255) if one.kind == "pixels" else x)
            np.testing.assert_allclose(begun[:, :OWN], wanted, atol=1e-5)
    judged = Judged(one, program, head, tmp_path, seed)
    try:
        judged.look()
        for what in rng.choice(_DONE, 8):
            judged.do(str(what))
    except BaseException as error:
        error.add_note(f"{one}, after {', '.join(judged.done)}")
        raise
    finally:
        judged.close()
    if head is not None:
        with TrainingSession(program, head="other") as session:
            other = session.infer(x)
            if one.frozen == "float32" and one.kind != "file":
                model = net(one, last=1)
                wanted = model.apply(model.params, x / np.float32(255) if one.kind == "pixels" else x)
                np.testing.assert_allclose(other[:, :OWN], wanted, atol=1e-5)
