"""The measurement of classes that come at run time: its choices of rows and its accuracies, beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from adding import Problem, RememberingSession, compared, looseness, problem, program_of, right
from class_tasks import Rows
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import accuracy_score, recall_score
from sklearn.neighbors import NearestCentroid

from tests.runtime.session.class_nets import INPUTS, OWN, small_model


@pytest.fixture(scope="module")
def rows() -> Rows:
    """Rows about a centre for each of six classes, of which the net is to know four."""
    rng = np.random.default_rng(7)
    y = (np.arange(600) % 6).astype(np.int32)
    x = rng.normal(size=(6, INPUTS))[y] * 1.5 + rng.normal(size=(600, INPUTS))
    return Rows(x.astype(np.float32), y)


def given(rows: Rows, seed: int = 0) -> Problem:
    """Classes 5, 0, 3 and 1 are the net's, in that order, and 2 comes; 4 has no part."""
    samples, held_out = Rows(rows.x[:300], rows.y[:300]), Rows(rows.x[300:], rows.y[300:])
    return problem(samples, held_out, [5, 0, 3, 1], 2, of_each=12, few=5, seed=seed)


def test_the_rows_of_a_choice(rows: Rows) -> None:
    made = given(rows)
    assert np.bincount(made.own.y).tolist() == [12] * OWN
    assert np.bincount(made.held_out.y).tolist() == [50] * (OWN + 1)
    names = {row.tobytes(): label for row, label in zip(rows.x, rows.y, strict=True)}
    of_data = [5, 0, 3, 1, 2]
    for part in (made.own, made.held_out):
        assert all(names[x.tobytes()] == of_data[y] for x, y in zip(part.x, part.y, strict=True))
    assert {names[x.tobytes()] for x in made.few} == {2}
    learned = {x.tobytes() for x in (*made.own.x, *made.few)}
    assert len(learned) == 4 * 12 + 5
    assert not learned & {x.tobytes() for x in made.held_out.x}
    assert (given(rows, seed=1).few != made.few).any()


def test_shares_of_right_answers() -> None:
    labels, answers = np.array([0, 1, 1, 2, 2, 2]), np.array([0, 1, 2, 2, 2, 0])
    found = right(answers, labels, own=2)
    assert found.all == accuracy_score(labels, answers)
    assert found.added == recall_score(labels, answers, labels=[2], average=None)[0]
    assert found.own == accuracy_score(labels[:3], answers[:3])


@pytest.mark.quick
def test_each_head_finds_what_scikit_learn_finds(rows: Rows) -> None:
    made = given(rows)
    with RememberingSession(program_of(small_model(), OWN)) as session:
        found = compared(session, made, looseness(session, made.own))
        own, judged = session.features(made.own.x), session.features(made.held_out.x)
        both = np.concatenate([own, session.features(made.few)])
        kept = len(session._seen)
        np.testing.assert_array_equal(session.features(made.few), super(RememberingSession, session).features(made.few))
        assert len(session._seen) == kept == len({x.tobytes() for x in (*made.own.x, *made.few, *made.held_out.x)})
    y, is_own = made.held_out.y, made.held_out.y < OWN
    assert found["means"].own == accuracy_score(
        y[is_own], NearestCentroid().fit(own, made.own.y).predict(judged[is_own])
    )
    oracle = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    assert found["discriminant"].all == accuracy_score(y, oracle.fit(own, made.own.y).predict(judged))
    assert found["discriminant + few"].all == accuracy_score(
        y, oracle.fit(both, np.append(made.own.y, [OWN] * 5)).predict(judged)
    )
    for before in ("trained", "means", "discriminant"):
        assert found[before].added == 0, "a class that has not come is never answered"
    for after in ("retrained", "means + few", "discriminant + few"):
        assert found[after].added > 0.5
        assert found[after].all == pytest.approx((4 * found[after].own + found[after].added) / 5)
