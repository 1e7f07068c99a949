"""What travels: names, layouts and checks of arrays."""

from __future__ import annotations

import numpy as np
import pytest

import converter
from converter.federated import Exchange, RefusedRound, identity
from converter.federated.arrays import identity_of
from converter.program.file import read_program
from converter.runtime import TrainingSession
from converter.support.errors import UsageError
from tests.federated.people import KINDS, built
from tests.runtime.programs import EXAMPLES


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_what_the_person_knows(kind: str) -> None:
    program = built(kind)
    exchange = Exchange(read_program(program.data))
    with TrainingSession(program.data) as session:
        numbers = np.random.default_rng(0)
        state = {name: numbers.standard_normal(a.shape).astype(np.float32) for name, a in session.state().items()}
        session.set_state(state)
        known, sent = session.parameters(), exchange.sent(state)
        for name, array in sent.items():
            if name in known:
                whole = known[name]
                cut = tuple(slice(0, size) for size in array.shape)
                np.testing.assert_array_equal(array, whole[cut])
        assert any(sent[name].shape != known[name].shape for name in sent if name in known) == (kind == "sparse")
        taken = exchange.taken(sent)
        assert {name: state[name].tolist() for name in taken} == {name: a.tolist() for name, a in taken.items()}
    assert exchange.nbytes() == sum(array.nbytes for array in sent.values())


def test_an_identity_is_of_the_model_and_what_trains() -> None:
    example = EXAMPLES["mlp"]
    base = identity(converter.build(example.model(), update="head", batch=4, check=False).data)
    same = converter.build(example.model(), update="head", batch=8, target="gpu", check=False)
    assert identity(same.data) == base
    for other in ({"update": "full"}, {"update": "head", "optimizer": "adam"}):
        assert identity(converter.build(example.model(), batch=4, check=False, **other).data) != base
    named = [
        identity(converter.build(example.model(), update="head", batch=4, check=False, labels=list(labels)).data)
        for labels in ("abcd", "abdc", "abcd")
    ]
    assert named[0] == named[2]
    assert len({base, *named}) == 3
    for room in (None, "4+2"):
        builds = [
            converter.build(
                example.model(), update="full", batch=4, check=False, labels=list(labels), classes=room
            ).data
            for labels in ("abcd", "abdc")
        ]
        for personal, fit in ((["layers/1/*"], True), (["layers/0/*"], False), ([], False)):
            one, other = (identity(build, personal) for build in builds)
            assert (one == other) == fit, "rows of a layer that does not travel may stand for other classes"
        one, other = (read_program(build).manifest for build in builds)
        alone = {one.head.kernel} if one.head else {one.labelled[0].parameters[0]}
        assert identity_of(one, alone) != identity_of(other, alone), "half of the layer travels"
    other = EXAMPLES["mlp"].model()
    other.params["layers"][0]["w"] = other.params["layers"][0]["w"] + np.float32(1e-3)
    assert identity(converter.build(other, update="head", batch=4, check=False).data) != base


def test_free_classes_have_no_norm_where_a_mean_rounds_them() -> None:
    """Means in float32, as Flower takes them, of clients with other numbers of rows: -30,000 becomes -29,999.998."""
    program = converter.build(EXAMPLES["mlp"].model(), update="full", batch=4, check=False, classes="4+20")
    exchange, rng = Exchange(read_program(program.data)), np.random.default_rng(0)
    with TrainingSession(program.data) as session:
        sent = exchange.sent(session.state())
    rounded = 0
    for clients in range(3, 30):
        rows = rng.integers(5, 200, clients)
        shares = (rows / rows.sum()).tolist()
        mean = {name: sum((array * share for share in shares), np.zeros_like(array)) for name, array in sent.items()}
        rounded += any((array != sent[name]).any() and array.min() > -30_000 for name, array in mean.items())
        assert exchange.checked(mean).keys() == sent.keys()
    assert rounded


def test_channels_that_devices_choose_are_refused() -> None:
    chosen = converter.Channels(0.25)
    program = converter.build(EXAMPLES["mlp"].model(), update={"layers/1/w": chosen}, batch=4, check=False)
    with pytest.raises(UsageError, match="cannot be averaged"):
        identity(program.data)


def test_what_a_server_sends_is_checked() -> None:
    exchange = Exchange(read_program(built("head").data))
    state = {t.tensor: np.zeros(t.shape, np.float32) for t in built("head").manifest.state_tensors}
    good = exchange.sent(state)
    kernel = good["head/w"]
    exchange.taken(good)
    exchange.taken(good | {"head/w": kernel.astype(np.float64)})
    bad = {
        "which this program does not train. Did you mean 'head/w'": good | {"head/ww": kernel},
        "did not send head/w": {"head/b": good["head/b"]},
        r"came as \[10, 256\], and is \[256, 10\]": good | {"head/w": kernel.T},
        "came as int32, and is float32": good | {"head/w": kernel.astype(np.int32)},
        "came with NaN or infinity": good | {"head/w": np.full_like(kernel, np.nan)},
        "NaN or infinity": good | {"head/w": np.full(kernel.shape, 1e300)},
        "a norm of 5.*e.*and .* is allowed": good | {"head/w": np.full_like(kernel, 1e30)},
    }
    for said, arrays in bad.items():
        with pytest.raises(RefusedRound, match=said):
            exchange.taken(arrays)
    with pytest.raises(RefusedRound, match="and 1 is allowed"):
        Exchange(read_program(built("head").data), norm=1.0).taken({n: a + 1 for n, a in good.items()})


def test_biases_of_free_classes_are_no_part_of_the_norm() -> None:
    """Room for classes: a bias of -30,000 says that there is none, and not how large the weights are."""
    model = EXAMPLES["mlp"].model()
    asked = {"update": "head", "batch": 4, "check": False}
    own = converter.build(model, **asked).manifest.parameters[0]
    bias = next(p for p in converter.build(model, **asked).manifest.parameters if len(p.shape) == 1)
    classes = bias.shape[0]
    roomy = converter.build(model, classes=f"{classes}+5", **asked)
    exchange = Exchange(read_program(roomy.data))
    plain = Exchange(read_program(converter.build(model, **asked).data))
    assert exchange.norm < plain.norm + 10 * np.sqrt(5 * (own.shape[0] + 1)) + 1
    with TrainingSession(roomy.data) as session:
        good = exchange.sent(session.state())
    exchange.taken(good)
    for number in (-1e30, -60_000.0, 1e6):
        changed = good[bias.name].copy()
        changed[-1] = number
        with pytest.raises(RefusedRound, match="have a norm of"):
            exchange.taken(good | {bias.name: changed})
