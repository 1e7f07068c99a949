"""Values computed again in the backward pass: the same numbers in less memory."""

from itertools import product

import numpy as np
import pytest

import converter
from converter.backend import builtins as tfl
from converter.backend.lowering.state import with_variables
from converter.backend.schedule import Bound, how, recompute, schedule, segmented, transient
from converter.backend.targets import target
from converter.ir import FLOAT32, Builder, Graph, Node, Origin, Parameter, TensorType, Value, verify
from converter.ir.evaluate import evaluate
from tests.models.zoo import CASES

ROWS = TensorType((128, 256), FLOAT32)


def step(keeps_input: bool) -> Graph:
    """y = gelu(x @ W), z = y @ W; backward: something of y, and of x where its input is kept anyway."""
    b = Builder()
    x, w = b.input("x", ROWS), b.constant(np.random.default_rng(0).standard_normal((256, 256)), np.float32)
    with b.at(Origin("layer")):
        before = b(tfl.BatchMatmul(), x, w)
        y = b(tfl.Gelu(False), before)
        z = b(tfl.BatchMatmul(), b(tfl.BatchMatmul(), y, w), w)
    with b.at(Origin("layer", phase="backward")):
        dw = b(tfl.BatchMatmul(True, False), y, z)
        dx = b(tfl.Mul(), z, before if keeps_input else z)
    b.graph.outputs = {"dw": dw, "dx": dx}
    return b.graph


def updated() -> Graph:
    """The same, where the learning rate meets y before its product: it stands last, and could run before dx."""
    graph = step(keeps_input=True)
    b = Builder(graph)
    before, (product, dx) = graph.nodes[:-2], graph.nodes[-2:]
    graph.nodes[:] = [*before, dx]
    with b.at(Origin("layer", phase="update")):
        scaled = b(tfl.Mul(), product.inputs[0], b.constant(0.5, np.float32))
    graph.nodes.append(Node(product.op, (scaled, product.inputs[1]), product.outputs, product.origin))
    return graph


@pytest.mark.parametrize("graph", [step(keeps_input=True), updated()], ids=["backward", "update"])
def test_a_cheap_value_of_what_is_kept_is_computed_again(graph: Graph) -> None:
    lean = verify(recompute(graph), "recompute")
    assert [n.op for n in lean.nodes].count(tfl.Gelu(False)) == 2
    feed = {"x": np.random.default_rng(1).standard_normal(ROWS.shape).astype(np.float32)}
    (wanted, _), (found, _) = evaluate(graph, feed), evaluate(lean, feed)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)
    readers = lean.consumers()
    forward = next(n for n in lean.nodes if n.op == tfl.Gelu(False))
    assert all(n.origin.phase == "forward" for n in readers[forward.output]), "it is kept all the same"


def test_what_only_the_backward_pass_reads_is_computed_there_alone() -> None:
    """Nothing is left that no order of what the results need would have."""
    b = Builder()
    x = b.input("x", ROWS)
    with b.at(Origin("layer")):
        before = b(tfl.Relu(), x)
        late = b(tfl.Gelu(False), before)
        z = b(tfl.Exp(), before)
    with b.at(Origin("layer", phase="backward")):
        b.graph.outputs = {"y": b(tfl.Mul(), b(tfl.Mul(), z, late), before)}
    lean = recompute(b.graph)
    assert [n.origin.phase for n in lean.nodes if n.op == tfl.Gelu(False)] == ["backward"]
    runs = {node: how(lean.constants, node, 8) for node in lean.nodes}
    ordered = schedule(lean, lambda graph: transient(graph, 8), lambda node: runs[node] is None, Bound(lean, runs))
    assert set(ordered.nodes) == set(lean.nodes)


def test_what_would_keep_its_input_alive_instead_is_kept() -> None:
    graph = step(keeps_input=False)
    assert recompute(graph) is graph


def test_the_arena_of_an_encoder_shrinks_without_another_product(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CASES["encoder"].model()
    options = {"batch": 64, "check": False, "signatures": ("train",)}
    lean = converter.build(model, **options).signatures["train"]
    monkeypatch.setattr("converter.backend.stages.recompute", lambda graph: graph)
    kept = converter.build(model, **options).signatures["train"]
    lanes = target("litert-2").lanes
    assert transient(with_variables(lean), lanes) < 0.95 * transient(with_variables(kept), lanes)
    assert products(lean) == products(kept)


def test_the_form_of_a_weight_is_not_kept() -> None:
    """A trained 1x1 convolution reads its filter as a matrix, forward and backward: no copy lives in between."""
    b = Builder()
    x, filters = b.input("x", ROWS), b.input("filters", TensorType((256, 1, 1, 256), FLOAT32))
    with b.at(Origin("layer")):
        w = b(tfl.Reshape((256, 256)), filters)
        y = b(tfl.BatchMatmul(), x, w)
    with b.at(Origin("layer", phase="backward")):
        b.graph.outputs = {"dx": b(tfl.BatchMatmul(adj_y=True), y, w)}
    lean = verify(recompute(b.graph), "recompute")
    readers = lean.consumers()
    phases = [[r.origin.phase for r in readers[n.output]] for n in lean.nodes if isinstance(n.op, tfl.Reshape)]
    assert phases == [["forward"], ["backward"]]


def test_a_forward_pass_in_segments_is_the_same_in_less_memory() -> None:
    """What a segment keeps is made again from what crosses its borders, by the same operators, so to the last bit."""
    case = CASES["encoder"]
    x, y = case.batch(8, 0)
    program = converter.build(case.model(), batch=8, check=False, signatures=("train",), target="litert-2/x86-64")
    step, lanes = program.signatures["train"], target("litert-2/x86-64").lanes
    feed = [x, y, np.ones(8, np.float32), np.full(1, 0.1, np.float32)]
    wanted, updated = evaluate(step, feed)
    needs = []
    for segments in segmented(step):
        for cut_once_more, together in product((False, True), (1, 2, 3)):
            graph = segments.graph(cut_once_more, together)
            outputs, updates = evaluate(verify(graph, "segmented"), feed)
            np.testing.assert_array_equal(outputs["loss"], wanted["loss"])
            assert all(np.array_equal(updates[p], array) for p, array in updated.items())
            assert products(step) < products(graph) < 2 * products(step)
            needs.append(transient(with_variables(graph), lanes))
    assert min(needs) < 0.8 * transient(with_variables(step), lanes)


def products(graph: Graph) -> int:
    """How many matrix products run."""
    return sum(isinstance(n.op, tfl.BatchMatmul | tfl.FullyConnected) for n in graph.nodes)


def test_what_is_large_in_a_segment_is_not_there_while_what_is_behind_it_goes_backward() -> None:
    """Four blocks of two wide parts, each exp(x up) down: of a segment cut once more one of them is there at a time."""
    rows, width, wide = 64, 16, 256
    b = Builder()
    shift = Value(TensorType((width,)), "shift")
    b.graph.parameters[shift] = Parameter("shift", np.full(width, 0.1, np.float32))
    up, down = (b.constant(np.full(shape, 0.01, np.float32)) for shape in ((width, wide), (wide, width)))
    blocks = []
    with b.at(Origin("layer")):
        x = b(tfl.Add(), b.input("x", TensorType((rows, width))), shift)
        for _ in range(4):
            entered, block = x, []
            for _ in range(2):
                block.append(b(tfl.Exp(), b(tfl.BatchMatmul(), x, up)))
                x = b(tfl.BatchMatmul(), block[-1], down)
            x = b(tfl.Add(), x, entered)
            blocks.append(block)
    with b.at(Origin("layer", phase="backward")):
        d = x
        for block in reversed(blocks):
            around = d
            for inner in reversed(block):
                d = b(tfl.BatchMatmul(adj_y=True), b(tfl.Mul(), b(tfl.BatchMatmul(adj_y=True), d, down), inner), up)
            d = b(tfl.Add(), d, around)
    b.graph.outputs = {"dx": d}
    feed = [np.full((rows, width), 0.1, np.float32)]
    wanted = evaluate(b.graph, feed)[0]["dx"]
    found = list(segmented(b.graph))
    coarse, finer = ([segments.graph(cut_once_more) for segments in found] for cut_once_more in (False, True))
    for graph in (*coarse, *finer):
        np.testing.assert_array_equal(evaluate(verify(graph, "segmented"), feed)[0]["dx"], wanted)
    least = [min(transient(graph, 8) for graph in graphs) for graphs in (coarse, finer)]
    assert least[1] < 0.95 * least[0]
