"""Programs of many kinds on the engines: each runs whole and right.

.venv/bin/python -m pytest -m "slow or not slow" tests/tools/certify/test_programs.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

import converter
from converter.runtime.engines import engine
from tests.tools.certify.programs import PROGRAMS

#: Those that a browser runs too, which takes a while: of each kind some.
IN_A_BROWSER = (
    "strided_convolutions", "grouped_convolutions", "pools_of_every_kind", "residual_batch_norm_train",
    "dilated_convolutions", "flax_convolutions", "unet_transposed", "unet_bilinear", "lstm", "encoder_lora",
    "decoder_interleaved", "several_outputs", "channels_of_a_convolution",
    "overlapping_max_pools", "relative_positions", "filters_of_every_size",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on", "name"), [*(("gpu", name) for name in PROGRAMS), *(("web", name) for name in IN_A_BROWSER)]
)
def test_a_program_is_whole_and_right(on: str, name: str, tmp_path: Path) -> None:
    if missing := engine(on).missing():
        pytest.skip(f"{on}: {missing}")
    model, options = PROGRAMS[name]()
    path = tmp_path / "p.tflite"
    path.write_bytes(converter.build(model, batch=4, target=on, check=False, **options).data)
    certificate = converter.certify(path, on=on, steps=2)
    assert certificate.ok, certificate.failures
