"""Without PyTorch its tests are left out."""

import pytest

pytest.importorskip("torch", reason="there is no PyTorch: scripts/torch/install .venv/bin/python")
