"""An engine that runs programs operator by operator in the stock interpreter, and makes the mistakes it is told to."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from converter.program.flatbuffer.operators import FileOperator, OperatorFile
from converter.program.flatbuffer.parts import constant_of, tensor_name
from converter.program.flatbuffer.schema import generated
from converter.runtime.engines.engine import Engine, Refusal
from converter.runtime.engines.work import Arrays, serve
from converter.runtime.session.gradient_range import LARGEST

FAULTS = "POCKETUNE_TEST_FAULTS"


class Fake(Engine):
    """Its faults are kinds of operators: `refuses`, `aborts`, `hangs`, `wrong` (by 5 %), `fused` (a pair: the second is
    wrong behind the first, whose own result is garbage where somebody else asks for it); `half`: all is rounded; and
    `numbers`: no truth values go in or out."""

    name = "gpu"
    title = "a fake"
    worker = "tests.tools.certify.fake"
    version = "1"

    def __init__(self, precision: str = "float32", limit: float = 60, apart: bool = False, **faults: Any) -> None:
        super().__init__()
        self.precision, self.apart = precision, apart  # type: ignore[misc]
        self.has_truth_values = "numbers" not in faults  # type: ignore[misc]
        self._limit, self._faults = limit, faults

    def missing(self) -> str | None:
        return None

    def set_up(self, accepted: bool) -> str:
        return ""

    def environment(self) -> dict[str, str]:
        return {FAULTS: json.dumps(self._faults)}

    def refusals(self, log: str) -> list[Refusal]:
        return [Refusal(line.split()[1], "it said no") for line in log.splitlines() if line.startswith("refused ")]

    def run(self, tasks: Any, limit: float = 0) -> Any:
        return super().run(tasks, self._limit)


class _Runner:
    def __init__(self, path: Path, options: Mapping[str, Any]) -> None:
        self.file, self.faults = OperatorFile(path.read_bytes()), json.loads(os.environ[FAULTS])
        kinds = {o.kind for _, operators in self.file.subgraphs() for o in operators}
        if self.faults.get("aborts") in kinds:
            sys.stderr.write("something is dreadfully wrong\n")
            sys.stderr.flush()
            os.abort()
        if self.faults.get("hangs") in kinds:
            time.sleep(600)
        if self.faults.get("numbers") and self._has_truth_values():
            raise TypeError("element type bool is not supported")
        self.refused = self.faults.get("refuses") in kinds
        if self.refused:
            sys.stderr.write(f"refused {self.faults['refuses']}\n")
            sys.stderr.flush()

    def _has_truth_values(self) -> bool:
        graph = self.file.model.Subgraphs(0)
        ends = [*map(graph.Inputs, range(graph.InputsLength())), *map(graph.Outputs, range(graph.OutputsLength()))]
        return any(graph.Tensors(i).Type() == generated.TensorType.BOOL for i in ends)

    def said(self, log: str) -> dict[str, Any]:
        return {"whole": not self.refused, "driver": "nothing"}

    def __call__(self, signature: str, feed: Arrays) -> Arrays:
        model = self.file.model
        definitions = [model.SignatureDefs(i) for i in range(model.SignatureDefsLength())]
        (definition,) = (d for d in definitions if d.SignatureKey().decode() == signature)
        graph = model.Subgraphs(definition.SubgraphIndex())
        inputs = [definition.Inputs(i) for i in range(definition.InputsLength())]
        outputs = [definition.Outputs(i) for i in range(definition.OutputsLength())]
        values = {tensor.TensorIndex(): self._half(feed[tensor.Name().decode()]) for tensor in inputs}
        kinds: dict[int, str] = {}
        first, second = self.faults.get("fused", (None, None))
        for operator in self.file.operators(definition.SubgraphIndex()):
            after = {kinds.get(i) for i in operator.inputs}
            for index, array in self._run(graph, operator, values).items():
                wrong = operator.kind == self.faults.get("wrong") or (operator.kind == second and first in after)
                values[index] = self._half(array * np.float32(1.05) if wrong else array)
                kinds[index] = operator.kind
        wanted = {tensor.Name().decode(): tensor.TensorIndex() for tensor in outputs}
        read = {i for operator in self.file.operators(definition.SubgraphIndex()) for i in operator.inputs}
        return {
            name: np.full_like(values[i], 1e30) if kinds.get(i) == first and i in read else values[i]
            for name, i in wanted.items()
        }

    def _half(self, array: np.ndarray) -> np.ndarray:
        if not self.faults.get("half") or array.dtype != np.float32:
            return array
        return np.clip(array, -LARGEST, LARGEST).astype(np.float16).astype(np.float32)

    def _run(self, graph: Any, operator: FileOperator, values: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        runner = Interpreter(model_content=operator.program()).get_signature_runner("part")
        read = {i for i in operator.inputs if i >= 0 and not constant_of(self.file.model, graph, i).size}
        given = runner(**{tensor_name(i): values[i] for i in read})
        return {i: given[tensor_name(i)] for i in operator.outputs}


if __name__ == "__main__":
    serve(_Runner)
