"""Import rules: one function per ATen operator, which computes it with JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from converter.frontends.torch.findings import Findings
from converter.support.errors import NotImportable
from converter.support.registry import Registry

__all__ = ["Call", "NotImportable", "Rule", "Rules"]


@dataclass(frozen=True)
class Call:
    """One node of an exported graph, as its rule sees it.

    Attributes:
        node: the node of the graph.
        layer: the path of the module that it stands in.
        targets: names of parameters and buffers by the name of the node that stands for them.
        findings: takes what is found beside.
        dtype: the element type of the (first) result, as NumPy names it.
    """

    node: Any
    layer: str
    targets: dict[str, str]
    findings: Findings
    dtype: Any

    def name_of(self, position: int) -> str | None:
        """Return the name of the parameter or buffer that an operand is; None for any other operand."""
        operand = self.node.args[position] if position < len(self.node.args) else None
        return self.targets.get(getattr(operand, "name", ""))


#: What to do about an exported program that acts as in training.
EXPORT_IN_EVAL = (
    "export it as it infers, torch.export.export(module.eval(), ...), and ask for what acts in a step by "
    "dropout='train', batch_norm='train'"
)

#: A rule: takes the call and the operands as the operator does, arrays of JAX for tensors.
Rule = Callable[..., Any]


class Rules(Registry[str, Rule]):
    """The import rules of one subject; its call is a decorator: `@rule("relu")`."""

    def __call__(self, *operators: str) -> Callable[[Rule], Rule]:
        """Add the decorated function, `function(call, *operands)`, for operators of ATen, all overloads of them.

        A name with a dot is of one overload: `max.dim`.

        Raises:
            ValueError: an operator has a rule already.
        """

        def register(function: Rule) -> Rule:
            for name in operators:
                self.add(name, function)
            return function

        return register

    def computes(self, function: Callable[..., Any], operators: Sequence[str]) -> None:
        """Add a function of arrays for operators."""
        for name in operators:
            self.add(name, lambda call, *operands, **options: function(*operands, **options))
