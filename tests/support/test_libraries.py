"""Objects of libraries are recognised by the libraries' classes, whatever their modules are called."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from converter.support.libraries import is_defined_in, is_instance


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("somebodys")
    made.Thing = type("Thing", (), {"__module__": "somebodys.inner"})
    made.function = lambda: None
    monkeypatch.setitem(sys.modules, "somebodys", made)
    return made


def test_an_object_is_of_a_class_of_a_loaded_library(library: ModuleType) -> None:
    derived = type("Own", (library.Thing,), {"__module__": "mine"})
    assert is_instance(library.Thing(), "somebodys", "Thing")
    assert is_instance(derived(), "somebodys", "Missing", "Thing")
    assert not is_instance(derived, "somebodys", "Thing")  # a class is no object of it
    assert not is_instance(library.Thing(), "somebodys", "function")
    assert not is_instance(library.Thing(), "nobodys", "Thing")


def test_what_a_library_defined_is_its_own_and_what_is_derived_is_not(library: ModuleType) -> None:
    derived = type("Own", (library.Thing,), {"__module__": "mine"})
    assert is_defined_in(library.Thing, library)
    assert not is_defined_in(derived, library)
    assert not is_defined_in(type("Other", (), {"__module__": "somebodys_too"}), library)
    assert not is_defined_in(3, library)
    assert not is_defined_in(library.Thing, None)
