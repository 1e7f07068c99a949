"""Which parameters a scheme picks, why, and what it says when it cannot."""

from dataclasses import replace

import numpy as np
import optax
import pytest

import converter
from converter.ir import Builder, Graph, Origin, Parameter, TensorType, Value, ops
from converter.passes.idioms import with_idioms
from converter.support.errors import NumericError, UnsupportedError, UsageError
from converter.training.schemes import UpdateScheme, update_scheme
from converter.training.schemes.blocks import named_block, numbered_blocks
from converter.training.schemes.structure import members
from tests.models.zoo import CASES


def network() -> Graph:
    """Four blocks of convolution, bias and scale, then a dense head; `block_1/statistics` does not train."""
    b = Builder()

    def weight(name: str, *shape: int, trainable: bool = True) -> Value:
        value = Value(TensorType(shape), name)
        b.graph.parameters[value] = Parameter(name, np.ones(shape, np.float32), trainable=trainable)
        return value

    x = b.input("x", TensorType((2, 6, 6, 8)))
    for i in range(4):
        with b.at(Origin(f"block_{i}")):
            x = b(ops.Conv2D(), x, weight(f"block_{i}/kernel", 8, 1, 1, 8))
            x = b(ops.Mul(), x, weight(f"block_{i}/scale", 8))
            x = b(ops.Relu(), b(ops.Add(), x, weight(f"block_{i}/bias", 8)))
    x = b(ops.Add(), x, weight("block_1/statistics", 8, trainable=False))
    x = b(ops.MatMul(), b(ops.Mean((1, 2)), x), weight("head/kernel", 8, 3))
    b.graph.outputs["output"] = b(ops.Add(), x, weight("head/bias", 3))
    return b.graph


def fractions(update) -> dict[str, float]:
    return {row.parameter: row.fraction for row in update_scheme(update).resolve(network()) if row.fraction}


def test_roles_are_read_from_the_graph() -> None:
    roles = {m.name: m.role for m in members(network())}
    assert roles["block_0/kernel"] == roles["head/kernel"] == "kernel"
    assert roles["block_2/scale"] == "scale"
    assert roles["head/bias"] == roles["block_3/bias"] == "bias"


#: Kernels as nets of Keras, Flax and plain JAX name them, each with its block.
BLOCKS = {
    "block_13_expand/kernel": "block_13",
    "block_13_project/kernel": "block_13",
    "conv2_block1_1_conv/kernel": "conv2_block1",
    "conv2_block1_2_conv/kernel": "conv2_block1",
    "block2a_expand_conv/kernel": "block2a",
    "block2a_dwconv/kernel": "block2a",
    "block4d_dwconv/kernel": "block4d",
    "block6_sepconv1/pointwise_kernel": "block6",
    "block6_sepconv2/pointwise_kernel": "block6",
    "stage_1_block_0_pointwise_conv_1/kernel": "stage_1_block_0",
    "stage_1_block_0_pointwise_conv_2/kernel": "stage_1_block_0",
    "stage_1_block_1_pointwise_conv_1/kernel": "stage_1_block_1",
    "stage_1_block_1_pointwise_conv_2/kernel": "stage_1_block_1",
    "layers/3/attention/query": "layers/3",
    "encoder_3/Mlp_0/Dense_0/kernel": "encoder_3",
    "encoder_3/Mlp_0/Dense_1/kernel": "encoder_3",
    "conv2d/kernel": "conv2d",
    "conv2d_1/kernel": "conv2d_1",
    "conv2d_2/kernel": "conv2d_2",
    "predictions/kernel": "predictions",
}

#: As PyTorch names them, parted by dots: stages of blocks alike, and what only looks like such a stage.
BLOCKS_OF_STAGES = {
    "layer1.0.conv1.weight": "layer1.0",
    "layer1.0.conv2.weight": "layer1.0",
    "layer1.0.downsample.0.weight": "layer1.0",
    "layer1.1.conv1.weight": "layer1.1",
    "layer1.1.conv2.weight": "layer1.1",
    "stages.1.downsample.1.weight": "stages.1",
    "stages.1.blocks.0.up.weight": "stages.1.blocks.0",
    "stages.1.blocks.0.down.weight": "stages.1.blocks.0",
    "stages.1.blocks.1.up.weight": "stages.1.blocks.1",
    "stages.1.blocks.1.down.weight": "stages.1.blocks.1",
    "features.2.conv.0.0.weight": "features.2",
    "features.2.conv.1.0.weight": "features.2",
    "features.2.conv.2.weight": "features.2",
    "layers.0.0.fn.to_qkv.weight": "layers.0",
    "layers.0.0.fn.to_out.weight": "layers.0",
    "layers.0.1.fn.net.1.weight": "layers.0",
    "layers.0.1.fn.net.4.weight": "layers.0",
    "h.5.attention.q.weight": "h.5",
    "h.5.attention.k.weight": "h.5",
    "h.5.experts.0.up.weight": "h.5",
    "h.5.experts.0.down.weight": "h.5",
    "h.5.experts.1.up.weight": "h.5",
    "h.5.experts.1.down.weight": "h.5",
    "classifier.1.weight": "classifier.1",
    "fc.weight": "fc",
}


def test_blocks_are_read_from_the_names() -> None:
    batch_norm = {"conv2_block1_1_bn/gamma": "conv2_block1", "block2a_bn/gamma": "block2a"}
    assert numbered_blocks([*BLOCKS, *batch_norm], list(BLOCKS)) == BLOCKS | batch_norm
    norms = {
        "layer1.1.bn1.weight": "layer1.1",
        "stages.1.downsample.0.weight": "stages.1",
        "classifier.1.bias": "classifier.1",
    }
    assert numbered_blocks([*BLOCKS_OF_STAGES, *norms], list(BLOCKS_OF_STAGES)) == BLOCKS_OF_STAGES | norms
    assert named_block("encoder/3/w", ["encoder/33", "encoder/3"]) == "encoder/3"
    assert named_block("encoder/33/w", ["encoder/3"]) is None
    assert named_block("encoder.3.w", ["encoder.33", "encoder.3"]) == "encoder.3"


def test_the_name_of_the_whole_model_makes_no_block() -> None:
    graph = network()
    graph.parameters = {v: replace(p, name=f"sequential_1/net/{p.name}") for v, p in graph.parameters.items()}
    blocks = dict.fromkeys(m.block for m in members(graph))
    assert list(blocks) == [f"sequential_1/net/{b}" for b in ("block_0", "block_1", "block_2", "block_3", "head")]


def test_named_schemes() -> None:
    everything = set(fractions("full"))
    assert everything == {m.name for m in members(network())} - {"block_1/statistics"}
    assert set(fractions("head")) == {"head/kernel", "head/bias"}
    assert set(fractions("last-2")) == {"head/kernel", "head/bias", *(n for n in everything if n.startswith("block_3"))}
    biases = {f"block_{i}/bias" for i in range(4)}
    assert set(fractions("bias-only")) == biases | {"head/kernel", "head/bias"}
    assert set(fractions("sparse")) == {
        *("block_2/kernel", "block_2/bias", "block_3/kernel", "block_3/bias", "head/kernel", "head/bias")
    }


def decoder(layers: int) -> Graph:
    """Of layers as in LLaMA: shared keys and values, a gated feed-forward part."""
    import jax
    import jax.numpy as jnp

    import jax_frontend

    def layer(x, p):
        q = (x @ p["q"]).reshape(*x.shape[:2], 2, 4)
        k, v = x @ p["k"], x @ p["v"]
        mixed = jnp.einsum("bhqk,bkd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bkd->bhqk", q, k)), v)
        x = x + mixed.reshape(x.shape) @ p["o"]
        return x + (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]

    def apply(params, ids):
        x = params["tokens"][ids]
        for p in params["layers"]:
            x = layer(x, p)
        return x @ params["head"]

    shapes = {"q": (8, 8), "k": (8, 4), "v": (8, 4), "o": (8, 8), "gate": (8, 16), "up": (8, 16), "down": (16, 8)}
    params = {
        "tokens": np.ones((5, 8), np.float32),
        "layers": [{name: np.ones(shape, np.float32) for name, shape in shapes.items()} for _ in range(layers)],
        "head": np.ones((8, 3), np.float32),
    }
    return with_idioms(
        jax_frontend.trace(jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 6), np.int32)]), 1)
    )


def test_the_sparse_scheme_of_transformers() -> None:
    trained = [row.parameter for row in update_scheme("sparse").resolve(decoder(6)) if row.fraction]
    last = [f"layers/{i}/{name}" for i in (4, 5) for name in ("q", "k", "v", "o", "gate")]
    assert set(trained) == {*last, "head"}
    one = [row.parameter for row in update_scheme("sparse").resolve(decoder(1)) if row.fraction]
    assert set(one) == {*(f"layers/0/{name}" for name in ("q", "k", "v", "o", "gate")), "head"}


def test_the_sparse_scheme_of_many_layers() -> None:
    trained = {row.parameter for row in update_scheme("sparse").resolve(decoder(32)) if row.fraction}
    assert {name.split("/")[1] for name in trained - {"head"}} == {"27", "28", "29", "30", "31"}


def convolutional(blocks: int, inverted: bool) -> Graph:
    """Of bottlenecks: 1x1, 3x3 and 1x1 convolutions; in the last ones the shortcut has a 1x1 convolution too."""
    import jax
    from jax import lax

    import jax_frontend

    def conv(x, w, groups=1):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)

    def apply(params, x):
        x = conv(x, params["stem"]["w"])
        for p in params["blocks"]:
            shortcut = conv(x, p["shortcut"]) if "shortcut" in p else x
            y = jax.nn.relu(conv(x, p["first"]) + p["bias"])
            x = shortcut + conv(jax.nn.relu(conv(y, p["inner"], 8 if inverted else 1)), p["last"])
        return conv(x, params["top"]["w"]).mean((1, 2)) @ params["head"]["w"]

    shapes = {"first": (1, 1, 4, 8), "bias": (8,), "inner": (3, 3, 1 if inverted else 8, 8), "last": (1, 1, 8, 4)}
    params = {
        "stem": {"w": np.ones((1, 1, 3, 4), np.float32)},
        "blocks": [{name: np.ones(shape, np.float32) for name, shape in shapes.items()} for _ in range(blocks)],
        "top": {"w": np.ones((1, 1, 4, 6), np.float32)},
        "head": {"w": np.ones((6, 2), np.float32)},
    }
    params["blocks"][-1]["shortcut"] = np.ones((1, 1, 4, 4), np.float32)
    return with_idioms(
        jax_frontend.trace(jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 4, 4, 3), np.float32)]), 1)
    )


@pytest.mark.parametrize(("blocks", "inverted", "last"), [(16, False, 8), (17, True, 7), (14, True, 7), (3, True, 1)])
def test_the_sparse_scheme_of_bottlenecks(blocks: int, inverted: bool, last: int) -> None:
    trained = {
        row.parameter for row in update_scheme("sparse").resolve(convolutional(blocks, inverted)) if row.fraction
    }
    assert trained == {
        *(f"blocks/{i}/{name}" for i in range(blocks - last, blocks) for name in ("first", "bias")),
        "head/w",
    }


def test_the_sparse_scheme_goes_by_the_name_of_its_paper_too() -> None:
    assert fractions("pockengine") == fractions("sparse")


def test_rules_the_last_one_holds_and_fractions_are_whole_channels() -> None:
    found = fractions({"*": "bias", "block_*/kernel": 0.3, "block_3/kernel": 0, "head/*": 1})
    assert found["block_0/kernel"] == 2 / 8
    assert "block_3/kernel" not in found
    assert found["head/kernel"] == 1
    assert fractions({"block_0/kernel": 0.97}) == {"block_0/kernel": 1.0}
    assert fractions({"block_0/kernel": 0.01}) == {"block_0/kernel": 1 / 8}
    assert fractions({"block_0/bias": 0.5}) == {"block_0/bias": 1.0}, "a bias has no input channels"


def test_each_row_says_why() -> None:
    rows = {row.parameter: row.why for row in update_scheme({"head/*": 1}).resolve(network())}
    assert rows["head/kernel"] == "rule head/* = 1"
    assert rows["block_0/kernel"] == "not chosen"
    assert rows["block_1/statistics"] == "not trainable in the model"


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("ful", "Did you mean 'full'"),
        ("last-0", "unknown update scheme"),
        ({"hed/*": 1}, "matches no parameter of the model"),
        ({"head/kernal": 1}, "Did you mean 'head/kernel'"),
        ({"head/*": 1.5}, "neither a fraction"),
        ({"head/*": "biases"}, "neither a fraction"),
        ({"block_1/statistics": 1}, "trains nothing"),
        ({"*": 0}, "trains nothing"),
    ],
)
def test_what_a_scheme_refuses(update, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        update_scheme(update).resolve(network())


def test_a_weight_that_cannot_be_cut_trains_whole() -> None:
    import jax
    import jax.numpy as jnp

    import jax_frontend

    def tied(params, x):
        return jnp.tanh(x @ params["w"]) @ params["w"]

    model = jax_frontend.Model(tied, {"w": np.eye(4, dtype=np.float32)}, [jax.ShapeDtypeStruct((1, 4), np.float32)])
    program = converter.build(model, update={"w": 0.5})
    assert program.costs["trained_parameters"] == 16
    assert "whole, a weight used 2 times (MatMul) cannot be cut" in program.table[0].why


def test_a_parameter_without_a_gradient_is_named() -> None:
    import jax

    import jax_frontend

    params = {"used": np.eye(3, dtype=np.float32), "forgotten": np.ones(3, np.float32)}
    model = jax_frontend.Model(lambda p, x: x @ p["used"], params, [jax.ShapeDtypeStruct((1, 3), np.float32)])
    with pytest.raises(NumericError, match="forgotten"):
        converter.build(model, update="full")
    assert converter.build(model, update={"used": 1}).costs["trained_parameters"] == 9


def test_scheme_of_the_persons_own() -> None:
    own = UpdateScheme(
        "mine", choose=lambda everything: {m.name: (1.0, "narrow") for m in everything if m.role == "bias"}
    )
    program = converter.build(CASES["mlp"].model(), update=own)
    assert program.manifest.update.scheme == "mine"
    assert {r.parameter for r in program.table if r.fraction} == {"layers/0/b", "layers/1/b", "layers/2/b"}


def test_schemes_compared() -> None:
    rows = {row["scheme"]: row for row in converter.compare_schemes(CASES["lenet"].model(), optimizer="adam", batch=4)}
    assert set(rows) == {"full", "sparse", "last-3", "bias-only", "head"}
    for name in ("sparse", "head"):
        for cost in ("trained_parameters", "flops_backward", "flops_update", "residual_bytes", "state_bytes"):
            assert rows[name][cost] < rows["full"][cost], (name, cost)
    assert all(row["mapped_bytes"] > 0 and row["arena_bytes"] > 0 for row in rows.values())


def test_it_is_the_optimizer_that_keeps_a_filter_whole() -> None:
    case = CASES["lenet"]
    options = {"update": {"conv2/w": 0.5, "fc*": 1}, "check": False}
    with pytest.raises(UnsupportedError, match=r"conv2/w: fraction 0\.5 .* optimizer looks at rows and columns"):
        converter.build(case.model(), optimizer=optax.adafactor(1e-3, min_dim_size_to_factor=2), **options)
    assert converter.build(case.model(), optimizer="adam", **options).table


def tied_decoder(biases: bool) -> Graph:
    """Token ids in, logits out by the matrix of the embedding; a norm before it."""
    import jax
    import jax.numpy as jnp

    import jax_frontend

    def apply(params, ids):
        x = params["tokens"][ids]
        for p in params["layers"]:
            x = x + jax.nn.silu(x @ p["up"] + p.get("b", 0.0)) @ p["down"]
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * params["norm"]
        return x @ params["tokens"].T

    layer = {"up": np.ones((16, 64), np.float32), "down": np.ones((64, 16), np.float32)}
    layer |= {"b": np.ones(64, np.float32)} if biases else {}
    params = {"tokens": np.ones((30, 16), np.float32), "layers": [layer] * 4, "norm": np.ones(16, np.float32)}
    return with_idioms(
        jax_frontend.trace(jax_frontend.Model(apply, params, [jax.ShapeDtypeStruct((1, 6), jnp.int32)]), 2)
    )


def test_the_head_of_a_tied_decoder_is_its_norm_and_the_matrix_which_other_schemes_leave() -> None:
    def chosen(update: str, biases: bool) -> dict[str, str]:
        rows = update_scheme(update).resolve(tied_decoder(biases))
        return {row.parameter: row.why for row in rows if row.fraction or row.adapter}

    assert set(chosen("head", False)) == {"norm", "tokens"}
    assert "tied to the embedding" in chosen("head", False)["tokens"]
    biases = {f"layers/{i}/b" for i in range(4)}
    kernels = {f"layers/{i}/{name}" for i in range(4) for name in ("up", "down")}
    assert set(chosen("bias-only", True)) == biases | {"norm"}
    assert set(chosen("lora-2", False)) == kernels | {"norm"}
    assert set(chosen("channels", False)) == kernels | {"norm"}
    assert set(chosen("sparse", False)) == {"layers/2/up", "layers/3/up", "norm"}
    with pytest.raises(UsageError, match=r"no biases outside of its head.*choose 'head', 'lora'"):
        chosen("bias-only", False)


def test_a_rank_that_is_too_large_names_the_largest_and_never_itself() -> None:
    with pytest.raises(UsageError, match="the largest rank here is 6, lora-6, or"):
        update_scheme("lora-7").resolve(tied_decoder(False))
    assert any(row.adapter for row in update_scheme("lora-6").resolve(tied_decoder(False)))
    with pytest.raises(UsageError, match=r"adapter of rank 2: the largest rank here is 1, lora-1, or"):
        update_scheme("lora-2").resolve(narrow(4))
    with pytest.raises(UsageError, match=r"adapter of rank 1: choose 'head', or rules of your own"):
        update_scheme("lora-1").resolve(narrow(2))


def narrow(width: int) -> Graph:
    """Dense layers of a few channels."""
    b = Builder()
    x = b.input("x", TensorType((2, width)))
    for name in ("first/kernel", "second/kernel", "head/kernel"):
        weight = Value(TensorType((width, width)), name)
        b.graph.parameters[weight] = Parameter(name, np.ones((width, width), np.float32))
        x = b(ops.MatMul(), x, weight)
    b.graph.outputs["output"] = x
    return b.graph


def test_of_the_usual_schemes_those_are_compared_that_the_model_allows() -> None:
    import jax

    import jax_frontend

    params = {name: np.eye(6, dtype=np.float32) for name in ("first", "second", "third")}
    model = jax_frontend.Model(
        lambda p, x: x @ p["first"] @ p["second"] @ p["third"], params, [jax.ShapeDtypeStruct((1, 6), np.float32)]
    )
    assert [row["scheme"] for row in converter.compare_schemes(model)] == ["full", "sparse", "last-3", "head"]
    with pytest.raises(UsageError, match="no biases outside of its head"):
        converter.compare_schemes(model, ["head", "bias-only"])
