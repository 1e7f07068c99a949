"""Tests draw the same cases and numbers in every run, so that a failure is the change's and not the dice's.

HYPOTHESIS_PROFILE=explore .venv/bin/python -m pytest tests/passes      # new cases each time
"""

import gc
import os
import sys
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings

from converter.passes.manager import Watch, watched
from tests.installed import Installed, install
from tests.left_out import (  # noqa: F401
    pytest_deselected,
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from tests.tiers import pytest_addoption, pytest_collection_modifyitems, pytest_runtest_protocol  # noqa: F401

# Keras takes its backend when it is first imported; other backends are tested in processes of their own.
os.environ.setdefault("KERAS_BACKEND", "jax")

# The oracles in JAX run for a few steps and are compiled for each test: XLA's optimizations cost more than they save.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

# Compilers make many objects and few cycles: with the usual 700 a fourteenth of a run was the search for garbage.
gc.set_threshold(20_000)

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own, which all processes of the run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "installed"
    folder.mkdir(exist_ok=True)
    return install(folder)


@pytest.fixture(scope="session")
def generators() -> list[np.random.Generator]:
    """What modules of tests draw their numbers from."""
    modules = [module for name, module in sys.modules.items() if name.startswith("tests.")]
    found = (value for module in modules for value in vars(module).values() if isinstance(value, np.random.Generator))
    return list({id(generator): generator for generator in found}.values())


@pytest.fixture(autouse=True)
def numbers_of_its_own(request: pytest.FixtureRequest, generators: list[np.random.Generator]) -> None:
    """A test's numbers do not depend on which tests ran before it in its process."""
    state = np.random.default_rng(zlib.crc32(request.node.nodeid.encode())).bit_generator.state
    for generator in generators:
        generator.bit_generator.state = state


@pytest.fixture(autouse=True)
def verified_passes() -> Iterator[None]:
    """Every graph that a pass makes is checked."""
    with watched(Watch(verifies=True)):
        yield
