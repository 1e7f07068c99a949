"""Optional dependencies: which extra of the package `pocketune` brings a library."""

from __future__ import annotations

from importlib.util import find_spec

from converter.support.errors import UsageError

#: Libraries of each extra, as they are imported; an extra that includes another lists its libraries too.
EXTRAS = {
    "compiler": ("jax", "optax"),
    "keras": ("jax", "optax", "keras"),
    "flax": ("jax", "optax", "flax"),
    "torch": ("jax", "optax", "torch"),
    "gguf": ("jax", "optax", "gguf"),
    "text": ("jinja2", "tokenizers"),
    "tensorflow": ("jax", "optax", "tensorflow"),
    "demo": ("jax", "optax", "keras", "sklearn"),
    "report": ("jinja2",),
    "safetensors": ("safetensors",),
    "search": ("jax", "optax", "cloudpickle", "scipy"),
    "ray": ("jax", "optax", "cloudpickle", "scipy", "ray"),
    "federated": ("flwr",),
    "dp": ("flwr", "dp_accounting"),
    "hexagon": ("onnx", "onnxruntime"),
    "micro": ("tflite_micro",),
}


def missing(extra: str) -> tuple[str, ...]:
    """Return the libraries of an extra that are not installed; none of them is imported."""
    return tuple(name for name in EXTRAS[extra] if find_spec(name) is None)


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'pocketune[{extra}]'"


def bringing(library: str) -> str | None:
    """Return the first extra that brings a library; None: none does."""
    return next((extra for extra, libraries in EXTRAS.items() if library in libraries), None)


def require(extra: str, what: str) -> None:
    """Raise UsageError where a library of an extra is not installed.

    Args:
        extra: its name in `EXTRAS`.
        what: that needs it, which begins the sentence: `reports`.
    """
    if lacking := missing(extra):
        verb = "is" if len(lacking) == 1 else "are"
        raise UsageError(
            f"{what} needs {' and '.join(lacking)}, which {verb} not installed: {how_to_install(extra)}",
            page="arguments",
        )
