"""TLS of clients and leaves: whom a client trusts, why it does not, and the certificate that a leaf shows."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from converter.support.errors import UsageError


def trusting(certificates: bytes) -> ssl.SSLContext:
    """Return a client's context that trusts certificates, and whatever these have signed, alone.

    A server's own certificate is pinned by giving it alone, whoever signed it.

    Args:
        certificates: PEM.

    Raises:
        UsageError: there is no certificate in it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # else one that another has signed is not enough
    try:
        context.load_verify_locations(cadata=certificates.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(f"root certificates: expected certificates as PEM: {error}", page="federated") from None
    return context


def untrusted(error: BaseException | None) -> str | None:
    """Return why a server's certificate was refused; None where a call failed for another reason."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message.rstrip(".") or str(error)
        error = error.__cause__ or error.__context__
    return None


def check_shown(certificate: Path | None, key: Path | None, now: datetime | None = None) -> None:
    """Checks what a leaf shows to phones before it listens.

    Args:
        certificate: PEM file; None: no TLS.
        key: PEM file of its private key; None: it is in the file of the certificate.
        now: for tests.

    Raises:
        UsageError: a key without a certificate, a file that holds none, one that is not of the other, or a certificate
            that is over or not begun.
    """
    from cryptography.x509 import load_pem_x509_certificate

    if certificate is None:
        if key is not None:
            raise UsageError(f"{key} is the key of a certificate: name that too (--certificate)", page="federated")
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        shown = load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError) as error:
        beside = "" if key is None else f" and {key}"
        raise UsageError(f"cannot listen with {certificate}{beside}: {error}", page="federated") from None
    now = now or datetime.now(UTC)
    if not shown.not_valid_before_utc <= now <= shown.not_valid_after_utc:
        raise UsageError(
            f"{certificate} holds from {shown.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{shown.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, and it is {now:%Y-%m-%d %H:%M}: phones refuse it",
            page="federated",
        )
