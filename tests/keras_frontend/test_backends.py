"""Keras on another backend than JAX: a child process traces the model."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from converter.frontends.keras.process import import_in_child
from converter.support.errors import NumericError
from tests.keras_frontend.models import functional

ROOT = Path(__file__).resolve().parents[2]

#: Runs where Keras has the other backend; prints what it saw.
SCRIPT = """
import json, sys
import keras, numpy as np
import converter
from converter.frontends import keras as keras_frontend
from converter.support.errors import PocketuneError
from converter.ir import evaluate
from converter.frontends.keras.compile_config import UNDECAYED
from tests.keras_frontend.models import KINDS, Subclassed, predict, randomized, samples

seen = {"backend": keras.config.backend(), "jax": keras_frontend.runs_jax()}
for kind in json.loads(sys.argv[1]):
    build, specs = KINDS[kind]
    model, arrays = randomized(build()), samples(specs)
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "mse")
    imported = keras_frontend.import_keras(model, 3)
    graph, undecayed = imported.graph, imported.compiled["optimizer"]["config"][UNDECAYED]
    error = np.abs(evaluate(graph, arrays)[0]["output"] - predict(model, arrays)[0]).max()
    names = {p.name: p.trainable for p in graph.parameters.values()}
    seen[model.name] = {
        "error": float(error),
        "same names": set(names) == {v.path for v in model.weights},
        "same trainable": {n for n, t in names.items() if t} == {v.path for v in model.trainable_variables},
        "same decay": undecayed == [v.path for v in model.trainable_variables if v.name == "bias"] != [],
        "inputs": [v.name for v in graph.inputs],
    }
own = Subclassed(name="mine")
own(np.zeros((1, 6), np.float32))
for case in ("own", "to_jax_model"):
    try:
        keras_frontend.trace(own, 1) if case == "own" else keras_frontend.to_jax_model(model)
    except PocketuneError as error:
        seen[case] = [type(error).__name__, str(error)]
print(json.dumps(seen))
"""


#: Name of the model and of its inputs. Keras drops the name of a Sequential when it loads one: ours must not.
INPUTS = {"sequential": ("chain", ["x"]), "functional": ("net", ["x"]), "two inputs": ("two", ["image", "tag"])}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kinds"), [("numpy", ["sequential"]), ("tensorflow", ["sequential", "functional", "two inputs"])]
)
def test_a_live_model_of_another_backend(backend: str, kinds: list[str]) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(kinds)],
        env=os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert (seen["backend"], seen["jax"]) == (backend, False)
    for name, inputs in (INPUTS[kind] for kind in kinds):
        assert seen[name].pop("error") < 2e-5
        assert seen[name] == {"same names": True, "same trainable": True, "same decay": True, "inputs": inputs}
    kind, message = seen["own"]
    assert kind == "UnsupportedError"
    assert "model 'mine' cannot be loaded safely" in message
    assert "Set KERAS_BACKEND=jax before Keras is imported." in message
    assert seen["to_jax_model"][0] == "UsageError"


def test_the_childs_error_is_the_persons(tmp_path: Path) -> None:
    model = functional()
    model.get_layer("head").bias.assign(np.full(5, np.inf))
    model.save(tmp_path / "model.keras")
    with pytest.raises(NumericError, match="head/bias: 5 elements"):
        import_in_child((str(tmp_path / "model.keras"), 1, None, None))
