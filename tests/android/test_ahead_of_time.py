"""Programs compiled ahead of time for the NPU of a phone, and what phones with large pages ask of an APK."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import converter
from converter.program.flatbuffer.schema import generated
from converter.runtime.engines.engine import FOLDER
from converter.support.errors import UsageError
from jax_frontend import Model
from scripts.app_assets.hexagon import compile_ahead
from scripts.app_assets.pages import PAGE, misaligned, stored_at


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split one."""
    path = tmp_path_factory.mktemp("ahead") / "split.tflite"
    params = {"w": jnp.ones((6, 4)), "b": jnp.zeros(4)}
    model = Model(lambda p, x: jax.nn.relu(x) @ p["w"] + p["b"], params, [jax.ShapeDtypeStruct((1, 6), "float32")])
    converter.build(model, optimizer="adam", target="hexagon", check=False).write(path)
    return path


def test_without_the_compiler_one_is_told_how_to_get_it(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(UsageError, match="engines hexagon"):
        compile_ahead(program, "SM8650", tmp_path / "out.tflite")


@pytest.mark.skipif(
    not Path(os.environ.get(FOLDER, "/none"), "qnn").is_dir(), reason="Qualcomm's libraries are not here"
)
def test_all_but_the_update_becomes_one_operator(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tflite"
    compile_ahead(program, "SM8650", out)
    compiled = generated.ModelT.InitFromPackedBuf(out.read_bytes(), 0)
    sizes = {
        d.signatureKey.decode(): len(compiled.subgraphs[d.subgraphIndex].operators) for d in compiled.signatureDefs
    }
    assert sizes.pop("apply") > 1
    assert sizes == {"gradients": 1, "evaluate": 1, "infer": 1}


def elf(alignment: int) -> bytes:
    """A 64-bit library with one segment to be loaded."""
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, 1)
    segment = bytearray(56)
    struct.pack_into("<I", segment, 0, 1)
    struct.pack_into("<Q", segment, 48, alignment)
    return bytes(head + segment)


def test_libraries_that_large_pages_refuse_are_found(tmp_path: Path) -> None:
    apk = tmp_path / "some.apk"
    with zipfile.ZipFile(apk, "w") as archive:
        first = zipfile.ZipInfo("lib/arm64-v8a/good.so")
        first.extra = (
            b"\0\0"
            + struct.pack("<H", PAGE - 30 - len(first.filename) - 4)
            + bytes(PAGE - 30 - len(first.filename) - 4)
        )
        archive.writestr(first, elf(PAGE))
        archive.writestr("lib/arm64-v8a/at_an_odd_place.so", elf(PAGE))
        archive.writestr("lib/x86_64/old.so", elf(4096))
        archive.writestr("lib/armeabi-v7a/never_on_such_phones.so", elf(4096))
    assert stored_at(apk)["lib/arm64-v8a/good.so"] == PAGE
    assert misaligned(apk) == {"lib/arm64-v8a/at_an_odd_place.so": PAGE, "lib/x86_64/old.so": 4096}
