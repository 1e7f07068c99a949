"""Certificates: which engine ran a program's step, and how far from the CPU it was."""

from __future__ import annotations

from dataclasses import dataclass

from converter.program.manifest.schema import fail


@dataclass(frozen=True)
class CertificateFailure:
    """What an engine refused or computed wrongly.

    Attributes:
        layer: of the user's model; empty where it is nobody's, or not known.
        operator: the builtin; empty where it is not known.
        what: what happened, in words.
        advice: what to change; empty where there is none.
    """

    layer: str
    operator: str
    what: str
    advice: str = ""

    def __str__(self) -> str:
        where = " of ".join(part for part in (self.operator, self.layer) if part)
        return f"{where}: {self.what}" if where else self.what


@dataclass(frozen=True)
class Certificate:
    """What came of running a program's signatures on an engine, beside the CPU.

    An error is the largest difference of a tensor by the largest number that the CPU has for it (of a state tensor: of
    what the step changes in it); None where the engine gave none, or no finite one.

    Attributes:
        on: the engine as it was asked for: `gpu`, `hexagon:SM8650`.
        engine: what it is.
        version: of it; the certificate says nothing of another one.
        driver: what it ran on.
        date: when, in UTC.
        steps: how many were compared, each from a state of the CPU's.
        ok: whether the engine takes every operator and computes every result rightly.
        whole: whether it takes every operator.
        precision: in which it computes.
        loss_error: of the worst loss.
        update_error: of the worst state tensor.
        output_error: of the worst other result.
        floor: update_error of the CPU where inputs and state are rounded to the engine's precision; of float16 alone.
        failures: what went wrong, the first operators first.
    """

    on: str
    engine: str
    version: str
    driver: str
    date: str
    steps: int
    ok: bool
    whole: bool
    precision: str
    loss_error: float | None = None
    update_error: float | None = None
    output_error: float | None = None
    floor: float | None = None
    failures: tuple[CertificateFailure, ...] = ()

    def holds(self, engine: str, version: str) -> bool:
        """Return whether it says that this very engine runs the program rightly."""
        return self.ok and (self.engine, self.version) == (engine, version)


def check_certificate(where: str, certificate: Certificate) -> None:
    """Raise UsageError where it says that all is well, and that something is not."""
    if certificate.ok and (not certificate.whole or certificate.failures or certificate.update_error is None):
        fail(f"{where}: it says that all is well, and that something is not")
