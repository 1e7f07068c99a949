"""JAX functions of arrays as programs of one signature, `call`, with their derivatives on request.

f = converter.function(lambda x, w: jnp.tanh(x @ w), x, w, gradient=True)
y, dx, dw = f.run(x, w, dy)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from converter.backend.emit.emit import Subgraph, emit
from converter.backend.lowering.state import with_own_results
from converter.backend.stages import in_order, to_builtins
from converter.backend.targets import Target
from converter.backend.targets import target as find_target
from converter.ir import Builder, Graph, TensorType, Value, ops
from converter.passes import eliminate_dead_code, fold_constants
from converter.passes.autodiff import pull_back
from converter.passes.canonical import canonicalize, specialize
from converter.passes.idioms import with_idioms
from converter.support.errors import DeviceError, UnsupportedError, UnsupportedSite, UsageError

#: The signature of the program.
SIGNATURE = "call"


@dataclass(frozen=True)
class Function:
    """A compiled function.

    Attributes:
        data: the `.tflite` file; its only signature is `call`.
        graph: what it computes, in semantic ops: the inputs and outputs of the signature, with JAX's own shapes.
        returns: the type of each result of the function itself; the cotangents of its arguments follow them.
    """

    data: bytes = field(repr=False)
    graph: Graph = field(repr=False)
    returns: Sequence[TensorType]

    def run(self, *arguments: Any) -> list[np.ndarray]:
        """Runs the program in the stock interpreter.

        Args:
            *arguments: the function's arguments, trees of arrays like those that it was compiled for; then, for
                `gradient=True`, a cotangent for each output. Those of outputs that are no floats are not looked at,
                and may be left out.

        Returns:
            The outputs, the leaves of the function's result in order; then, for `gradient=True`, the cotangent of each
            float argument, as `jax.vjp` gives them.

        Raises:
            UsageError: another number of arrays, or one of another shape.
            DeviceError: the interpreter failed, for example at an index out of range.
        """
        import jax_frontend

        arrays = jax_frontend.array_leaves(arguments)
        inputs, floats = self.graph.inputs, [t.dtype.kind == "f" for t in self.returns]
        spare = floats.count(False)
        if spare and len(arrays) == len(inputs) + spare:
            after = len(arrays) - len(floats)
            arrays = arrays[:after] + [a for a, kept in zip(arrays[after:], floats, strict=True) if kept]
        if len(arrays) != len(inputs):
            raise UsageError(
                f"the function takes {len(inputs)} arrays ({_listed(inputs)}), not {len(arrays)}", page="functions"
            )
        feed = {}
        for value, array in zip(inputs, arrays, strict=True):
            if array.shape != value.shape:
                raise UsageError(
                    f"{value.name} has shape {list(value.shape)}, not {list(array.shape)}", page="functions"
                )
            if array.size:
                feed[value.name] = array.astype(value.dtype).reshape(value.shape or (1,))
        try:
            found = self._runner(**feed)
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"LiteRT could not run the function: {error}") from None
        return [
            np.reshape(found[name], value.shape) if value.type.size else np.zeros(value.shape, value.dtype)
            for name, value in self.graph.outputs.items()
        ]

    def check(self) -> None:
        """Loads the program. Raises UnsupportedError when a kernel of the interpreter refuses its operator."""
        try:
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            reason = f"a kernel of the stock interpreter refuses its operator: {error}"
            advice = "Compute it in float32, with fewer axes, or outside the model."
            raise UnsupportedError(
                f"{reason} {advice}", [UnsupportedSite("call", "", "", reason, advice)], page="functions"
            ) from None

    @cached_property
    def _interpreter(self) -> Any:
        from converter.support.litert import Interpreter

        return Interpreter(model_content=self.data, num_threads=1)

    @cached_property
    def _runner(self) -> Callable[..., dict[str, np.ndarray]]:
        return self._interpreter.get_signature_runner(SIGNATURE)


def function(
    fn: Callable[..., Any], *example_args: Any, gradient: bool = False, target: str | Target = "litert-2"
) -> Function:
    """Compiles any JAX function of arrays: the way to try an operation, a layer or a loss on its own.

    Args:
        fn: the function, called as `fn(*example_args)`.
        *example_args: arrays, numbers or trees of them; only their shapes and element types matter.
        gradient: whether the program also gives the cotangent of each float argument.
        target: runtime, version and processor to choose forms for.

    Returns:
        The program; `.run(*args)` calls it.

    Raises:
        UnsupportedError: the function uses what cannot be compiled; `.sites` lists the places.
    """
    import jax_frontend

    chosen = find_target(target)
    graph = with_idioms(jax_frontend.trace_function(fn, jax_frontend.array_types(example_args), known_keys=True))
    returns = [value.type for value in graph.outputs.values()]
    graph = canonicalize(graph)
    if gradient:
        graph = _with_gradients(graph)
    filled = graph.copy()  # the interpreter has no tensors without elements
    filled.inputs = [value for value in graph.inputs if value.type.size]
    filled.constants |= {v: np.zeros(v.shape, v.dtype) for v in graph.inputs if not v.type.size}
    filled.outputs = {name: value for name, value in graph.outputs.items() if value.type.size}
    lowered = in_order(to_builtins(specialize(eliminate_dead_code(fold_constants(filled))), chosen), chosen)
    call = Subgraph(SIGNATURE, with_own_results(lowered))
    compiled = Function(emit([call], {}, f"Pocketune function {getattr(fn, '__name__', '')}"), graph, returns)
    compiled.check()
    return compiled


def _with_gradients(graph: Graph) -> Graph:
    """Return the graph with a cotangent of each float output as input, and of each float input as output."""
    b = Builder(graph.copy())
    cotangents: dict[Value, Value] = {}
    for name, value in graph.outputs.items():
        if value.dtype.kind == "f":
            given = b.input(f"cotangent_{name}", value.type)
            known = cotangents.get(value)  # two outputs may be one value
            cotangents[value] = given if known is None else b(ops.Add(), known, given)
    wanted = [value for value in graph.inputs if value.dtype.kind == "f"]
    whole, found = pull_back(b.graph, cotangents, wanted)
    b = Builder(whole)
    for value in wanted:
        zeros = None if value in found else b.broadcast_to(b.constant(0.0), value.shape)
        whole.outputs[f"gradient_{value.name}"] = found[value] if zeros is None else zeros
    return whole


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(f"{value.name} {value.type}" for value in values)
