"""What a user would name on the command line: small models, losses and optimizers, good and bad."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jax_frontend


def _layer(rng: np.random.Generator, rows: int, columns: int) -> dict[str, np.ndarray]:
    return {"w": rng.standard_normal((rows, columns)).astype("f") / 4, "b": np.zeros(columns, "f")}


def _params() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"layers": [_layer(rng, 6, 8), _layer(rng, 8, 8), _layer(rng, 8, 3)]}


def _dense(layer: dict[str, Any], x: Any) -> Any:
    return x @ layer["w"] + layer["b"]


def mlp(params: Any, x: Any) -> Any:
    first, second, last = params["layers"]
    return _dense(last, jax.nn.relu(_dense(second, jax.nn.relu(_dense(first, x)))))


def _model(apply: Callable = mlp, params: Any = None, features: int = 6) -> jax_frontend.Model:
    inputs = [jax.ShapeDtypeStruct((1, features), "float32")]
    return jax_frontend.Model(apply, _params() if params is None else params, inputs)


def good() -> jax_frontend.Model:
    print("a model factory may print")
    return _model()


def wide() -> jax_frontend.Model:
    """Layers that are worth it."""
    rng = np.random.default_rng(0)
    return _model(params={"layers": [_layer(rng, 6, 512), _layer(rng, 512, 512), _layer(rng, 512, 3)]})


def _probabilities(params: Any, x: Any) -> Any:
    return jax.nn.softmax(mlp(params, x))


def probabilities() -> jax_frontend.Model:
    return _model(_probabilities)


def _two_heads(params: Any, x: Any) -> Any:
    scores = mlp(params, x)
    return {"kind": scores, "size": scores[:, :2]}


def two_heads() -> jax_frontend.Model:
    """Three classes and two numbers."""
    return _model(_two_heads)


def wrong_shape() -> jax_frontend.Model:
    return _model(features=5)


def nan() -> jax_frontend.Model:
    params = _params()
    params["layers"][1]["w"][2, 3] = np.nan
    return _model(params=params)


def _stopped(params: Any, x: Any) -> Any:
    return mlp(params, x) + jax.lax.stop_gradient(params["stopped"])


def no_gradient() -> jax_frontend.Model:
    return _model(_stopped, _params() | {"stopped": np.ones(3, "f")})


def _unsupported(params: Any, x: Any) -> Any:
    x = mlp(params, x)
    spectrum = jnp.fft.fft(x).real  # line of fft
    return spectrum + jnp.nextafter(x, 0.0)  # line of nextafter


def unsupported() -> jax_frontend.Model:
    return _model(_unsupported)


def not_a_model() -> dict[str, np.ndarray]:
    return {"w": np.ones(3)}


def broken() -> jax_frontend.Model:
    raise LookupError("the weights [of] this model are lost")  # line of broken


def exits() -> None:
    raise SystemExit(0)


def interrupted() -> None:
    raise KeyboardInterrupt


def needs(width: int) -> jax_frontend.Model:
    return _model(features=width)


not_callable = 3


def adam(rate: float = 1.0, b1: float = 0.9) -> optax.GradientTransformation:
    return optax.adam(rate, b1=b1)


def absolute(outputs: Any, y: Any) -> Any:
    return jnp.abs(outputs - y).mean(-1)


def smoothed(outputs: Any, y: Any) -> Any:
    """Takes integer labels."""
    wanted = 0.9 * jax.nn.one_hot(y, outputs.shape[-1]) + 0.1 / outputs.shape[-1]
    return -(wanted * jax.nn.log_softmax(outputs)).sum(-1)


def open_shape() -> Any:
    import keras

    return keras.Sequential([keras.Input((None, 4)), keras.layers.Dense(2)])


def brighter(x: Any, key: Any) -> Any:
    return x * jax.random.uniform(key, (x.shape[0], 1), minval=0.5, maxval=1.5)
