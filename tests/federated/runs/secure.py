"""TLS between a client and a leaf, with Flower's calls; run in Flower's environment.

    python -m tests.federated.runs.secure FOLDER

FOLDER has `program.tflite`. It prints the name of each case that went as it should.
"""

from __future__ import annotations

import ipaddress
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from converter.federated.leaf import Terms
from converter.federated.node import Link, kept_keys
from converter.federated.wire import LostServer
from converter.support.errors import UsageError
from tests.federated.bed import Bed

DAY = timedelta(days=1)


class Authority:
    """Who signs certificates."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority")])
        own = self._signed(self.name, self._key.public_key(), datetime.now(UTC) - DAY, ca=True)
        self.file = folder / "authority.pem"
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def signs(self, name: str, host: str = "127.0.0.1", begins: timedelta = -DAY) -> tuple[Path, Path]:
        """Write a certificate of three days and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        alternative: x509.GeneralName = (
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
        )
        made = self._signed(subject, key.public_key(), datetime.now(UTC) + begins, alternative)
        certificate, private = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, begins: datetime, *names: x509.GeneralName,
        ca: bool = False,
    ) -> x509.Certificate:  # fmt: skip
        made = (
            x509.CertificateBuilder(self.name, subject, key, x509.random_serial_number(), begins, begins + 3 * DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256())


def joins(folder: Path, port: int, trusted: Path | None, host: str = "127.0.0.1") -> None:
    """Join a leaf as a client does. Raises LostServer."""
    link = Link(f"{host}:{port}", False, trusted, patience=60)
    fleet = link.fleet(1000, kept_keys(folder / "client.pem"))
    fleet.join()
    assert fleet.node
    fleet.beat()
    fleet.leave(unregister=True)


@contextmanager
def shown_anyway(certificate: Path, key: Path) -> Iterator[int]:
    """Serve with any certificate; yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def refused(act: Callable[[], object], *words: str) -> None:
    """Check that something is refused at once, by a sentence."""
    begun = time.monotonic()
    try:
        act()
    except (LostServer, UsageError) as error:
        said = str(error)
    else:
        raise AssertionError(f"it was taken: {words}")
    assert all(word in said for word in words), (words, said)
    assert time.monotonic() - begun < 30, "it was not asked again and again"


def main(folder: Path) -> None:
    """Clients of a leaf with a certificate: pinned, of an authority, and of others."""
    authority, other = Authority(folder), Authority(folder / "other")
    leaf, foreign = authority.signs("leaf"), other.signs("foreign")
    bed = Bed(folder, "tls", Terms(), *leaf)
    joins(folder, bed.port, authority.file)
    print("trusted: an authority")
    joins(folder, bed.port, leaf[0])
    print("trusted: the leaf's own certificate, which another has signed")
    for trusted in (other.file, foreign[0]):
        refused(lambda trusted=trusted: joins(folder, bed.port, trusted), "is not talked to", "unable to get")
    assert not bed.store.one("SELECT 1 FROM phones LIMIT 1"), "nothing was said to it"
    print("refused: a certificate that others have signed")
    refused(lambda: joins(folder, bed.port, authority.file, "localhost"), "is not talked to", "Hostname mismatch")
    print("refused: another host's certificate")
    refused(lambda: joins(folder, bed.port, leaf[1]), "expected certificates as PEM")
    refused(lambda: Link("127.0.0.1:1", True, leaf[0]), "without TLS")
    print("refused: what is no certificate, or is for nothing")
    bed.close()

    past, future = authority.signs("past", begins=-5 * DAY), authority.signs("future", begins=DAY)
    for one, words in ((past, "has expired"), (future, "not yet valid")):
        with shown_anyway(*one) as port:
            refused(lambda port=port: joins(folder, port, authority.file), "is not talked to", words)
        print(f"refused: a certificate that {words}")

    def opens(*shown: Path | None) -> None:
        place = mkdtemp(dir=folder)
        Bed(folder, place, Terms(), *shown)  # type: ignore[arg-type]

    for one in (past, future):
        refused(lambda one=one: opens(*one), "phones refuse it")
    for pair in ((leaf[0], foreign[1]), (leaf[1], leaf[1]), (folder / "none.pem", leaf[1])):
        refused(lambda pair=pair: opens(*pair), "cannot listen with")
    refused(lambda: opens(None, leaf[1]), "name that too")
    print("refused: certificates that a leaf cannot show")
    print("all went as it should")


if __name__ == "__main__":
    (Path(sys.argv[1]) / "other").mkdir()
    main(Path(sys.argv[1]))
