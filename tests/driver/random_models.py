"""Random small networks as forward graphs, with every structure that the passes look for."""

from dataclasses import dataclass, field

import numpy as np

from converter.ir import FLOAT32, INT32, Builder, Graph, Origin, Parameter, TensorType, Value, ops

BATCH, CLASSES = 3, 4
ACTIVATIONS = [ops.Relu(), ops.Relu6(), ops.Tanh(), ops.Gelu(), ops.Silu(), ops.HardSwish(), ops.Logistic()]


@dataclass
class Network:
    """Draws a network: images through convolutions or token ids through attention, then a head of logits."""

    rng: np.random.Generator
    batch: int = BATCH
    b: Builder = field(default_factory=Builder)

    def weight(self, name: str, *shape: int, around: float = 0.0, scale: float | None = None) -> Value:
        """A trainable parameter in the model's layout."""
        scale = 1 / np.sqrt(max(np.prod(shape[:-1]), 1)) if scale is None else scale
        array = (around + scale * self.rng.standard_normal(shape)).astype(np.float32)
        value = Value(TensorType(shape, FLOAT32), name)
        self.b.graph.parameters[value] = Parameter(name, array)
        return value

    def activation(self, x: Value) -> Value:
        return self.b(ACTIVATIONS[self.rng.integers(len(ACTIVATIONS))], x)

    def normalized(self, x: Value, layer: str) -> Value:
        """Batch normalization by moving statistics, or a bias, or nothing."""
        kind, channels = self.rng.integers(3), x.shape[-1]
        if kind == 0:
            return x
        if kind == 1:
            return self.b(ops.Add(), x, self.weight(f"{layer}/bias", channels, scale=0.1))
        gamma, beta = (
            self.weight(f"{layer}/gamma", channels, around=1.0, scale=0.1),
            self.weight(f"{layer}/beta", channels),
        )
        mean, inverse = self.rng.normal(0, 0.1, channels), self.rng.uniform(0.7, 1.3, channels)
        scale = self.b(ops.Mul(), gamma, inverse)
        return self.b(ops.Add(), self.b(ops.Mul(), x, scale), self.b(ops.Sub(), beta, self.b(ops.Mul(), scale, mean)))

    def conv(self, x: Value, layer: str, channels: int) -> Value:
        k, stride = int(self.rng.integers(1, 4)), int(self.rng.integers(1, 3))
        around = tuple((int(a), int(b)) for a, b in self.rng.integers(0, 2, (2, 2)))
        if min(x.shape[1:3]) + 1 < k + stride:
            k, stride, around = 1, 1, ((0, 0), (0, 0))
        if self.rng.integers(3) == 0:
            w = self.weight(f"{layer}/depthwise", k, k, x.shape[3], 1, scale=1 / k)
            flat = self.b.reshape(w, (1, k, k, x.shape[3]))
            return self.b(ops.DepthwiseConv2D((stride, stride), around), x, flat)
        w = self.weight(f"{layer}/kernel", k, k, x.shape[3], channels)
        return self.b(ops.Conv2D((stride, stride), around), x, self.b.transpose(w, (3, 0, 1, 2)))

    def block(self, x: Value, name: str) -> Value:
        with self.b.at(Origin(name)):
            y = self.activation(self.normalized(self.conv(x, name, int(self.rng.integers(2, 6))), name))
            if self.rng.integers(3) == 0 and min(y.shape[1:3]) >= 2:
                pool = ops.MaxPool2D if self.rng.integers(2) else ops.SumPool2D
                y = self.b(pool((2, 2), (2, 2)), y)
            return self.b(ops.Add(), x, y) if y.shape == x.shape else y

    def dense(self, x: Value, layer: str, units: int) -> Value:
        y = self.b(ops.MatMul(), x, self.weight(f"{layer}/kernel", x.shape[-1], units))
        return self.b(ops.Add(), y, self.weight(f"{layer}/bias", units, scale=0.1)) if self.rng.integers(4) else y

    def convolutional(self) -> Graph:
        x = self.b.input("x", TensorType((self.batch, 7, 6, 3)))
        for i in range(int(self.rng.integers(1, 4))):
            x = self.block(x, f"block_{i}")
        if self.rng.integers(2):
            x = self.b(ops.Mean((1, 2)), x)
        else:
            x = self.b.reshape(x, (self.batch, int(np.prod(x.shape[1:]))))
        return self.head(x)

    def attention(self) -> Graph:
        width, length = 4 * int(self.rng.integers(1, 3)), 5
        ids = self.b.input("x", TensorType((self.batch, length), INT32))
        x = self.b(ops.Gather(0), self.weight("embedding", 11, width), ids)
        for i in range(int(self.rng.integers(1, 3))):
            with self.b.at(Origin(f"layer_{i}")):
                q, k, v = (self.dense(x, f"layer_{i}/{part}", width) for part in "qkv")
                scores = self.b(ops.Softmax(), self.b(ops.MatMul(False, True), q, k))
                x = self.b(ops.Add(), x, self.dense(self.b(ops.MatMul(), scores, v), f"layer_{i}/o", width))
                x = self.b(ops.LayerNorm(1e-3), x)
                x = self.b(ops.Mul(), x, self.weight(f"layer_{i}/gain", width, around=1.0))
                x = self.b(ops.Add(), x, self.activation(self.dense(x, f"layer_{i}/ffn", width)))
        return self.head(self.b(ops.Mean((1,)), x))

    def head(self, x: Value) -> Graph:
        if self.rng.integers(2):
            x = self.activation(self.dense(x, "hidden", 6))
        self.b.graph.outputs["output"] = self.dense(x, "head", CLASSES)
        return self.b.graph


def random_network(seed: int, batch: int = BATCH) -> Graph:
    """A forward graph with inputs `x` and output `output` [batch, CLASSES]."""
    network = Network(np.random.default_rng(seed), batch)
    return network.convolutional() if seed % 3 else network.attention()


def random_batch(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Inputs, targets, weights and a learning rate for one step."""
    rng = np.random.default_rng(seed)
    (x,) = graph.inputs
    data = rng.integers(0, 11, x.shape) if x.dtype == INT32 else rng.standard_normal(x.shape)
    return {
        "x": data.astype(x.dtype),
        "y": rng.integers(0, CLASSES, BATCH).astype(np.int32),
        "weight": rng.uniform(0.5, 2, BATCH).astype(np.float32),
        "learning_rate": np.array([0.1], np.float32),
    }


def random_rules(graph: Graph, seed: int) -> dict[str, float]:
    """What trains: each kernel a fraction, anything else all or nothing; never nothing at all."""
    rng = np.random.default_rng(seed)
    rules: dict[str, float] = {}
    for p in graph.parameters.values():
        kernel = p.name.endswith(("kernel", "depthwise"))
        rules[p.name] = float(rng.choice([0, 0.3, 0.5, 0.8, 1] if kernel else [0, 1]))
    rules["head/kernel"] = 1.0
    return rules
