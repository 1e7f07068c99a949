"""State of a session: read, saved and restored."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from converter.program.adapters import Adapter, adapters_of
from converter.program.file import ProgramFile
from converter.program.manifest import Manifest
from converter.program.parameters import check_tensors, parameters_of
from converter.runtime.interpreters.entry import ProgramEngine
from converter.runtime.session.rates import RateWatch
from converter.runtime.session.running import Running
from converter.runtime.state.interchange import StateSpec
from converter.runtime.state.saved import Restored, restore_state, save_state
from converter.runtime.state.state_dict import state_dict
from converter.support.errors import UsageError


class HeldState:
    """An open program with its state. Any thread may call any method.

    Attributes:
        manifest: of the program.
    """

    def __init__(self, program: ProgramFile, engine: ProgramEngine) -> None:
        self._program = program
        self.manifest: Manifest = program.manifest
        self._lock = threading.RLock()
        self._running: Running | None = Running(program, engine)
        self._rate_watch = RateWatch(self.manifest, self.state)
        self._states = StateSpec.of(program)
        self._adopted: set[str] = set()  # graph hashes of programs whose states were taken over

    def channels(self) -> dict[str, np.ndarray]:
        """Return the channels that train, by weight; the first ones until they are chosen."""
        state = self.state()
        return {choice.weight: state[choice.indices] for choice in self.manifest.choices}

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the trained weights as they are now, by the model's own names, in its own layout and full shape."""
        return parameters_of(self._program, self.state())

    def state_dict(self, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return them for `module.load_state_dict(..., strict=False)`, adapters merged; into `base` if it is given."""
        return state_dict(self._program, self.state(), base)

    def adapters(self) -> dict[str, Adapter]:
        """Return the low-rank adapters as they are now, by the weights that they change."""
        return adapters_of(self._program, self.state())

    def state(self) -> dict[str, np.ndarray]:
        """Return a copy of every state tensor as the program stores it: trained weights and the optimizer's slots."""
        with self._lock:
            return self._open().memory.read()

    def set_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Puts tensors in the place of the whole state.

        Args:
            tensors: as `state` gives them.

        Raises:
            UsageError: they are not those of this program, or not finite. The session stays as it was.
        """
        with self._lock:
            running = self._open()
            check_tensors(self.manifest, tensors, "the state")
            for name, array in tensors.items():
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise UsageError(f"the state: {name} holds NaN or infinity", page="sessions")
            running.take(tensors)
            self._changed()

    def save(self, path: str | os.PathLike) -> int:
        """Writes the state to a file, whole or not at all; the one before stays as `<path>.previous`.

        Returns:
            The generation: how often this file was saved.

        Raises:
            NumericError: the state is not finite; the files stay as they were.
            UsageError: the file cannot be written, or is something else than a state of this program.
        """
        with self._lock:
            running = self._open()
            running.check_not_lost()
            return save_state(path, self._states, running.memory.read(), self._adopted)

    def restore(self, path: str | os.PathLike, adopt: str | None = None) -> Restored:
        """Takes the state from a file, also of another build of the same model.

        A StateWarning says when only the older of the two files is good, and when an older version saved the state, so
        that not all could be compared.

        Args:
            path: what `save` wrote, here or on a phone.
            adopt: `matching` takes over the tensors that match by name and shape from the state of another program; the
                others are as built. `save` may then write to the same path.

        Returns:
            What was taken over and what was left, by name, and what differs between the programs.

        Raises:
            UsageError: no file, both files damaged, or a state of another program, with what differs. The session stays
                as it was.
        """
        with self._lock:
            running = self._open()
            tensors, restored = restore_state(path, self._states, adopt)
            whole = dict(self._states.built) | tensors  # what is in memory may not be finite
            check_tensors(self.manifest, whole, os.fspath(path))
            running.take(whole)
            self._changed()
            if restored.differences:
                self._adopted.add(restored.program)
            return restored

    def reset(self) -> None:
        """Back to the state that was built."""
        with self._lock:
            self._open().reset()
            self._changed()

    def close(self) -> None:
        """Gives the interpreter's memory back. What was not saved is gone; closing twice is fine."""
        with self._lock:
            self._running = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> Running:
        if self._running is None:
            raise UsageError("the session is closed: open a new TrainingSession", page="sessions")
        return self._running

    def _back(self, tensors: dict[str, np.ndarray]) -> None:
        """To a state of this training."""
        self._open().memory.write(tensors)
        self._changed()

    def _changed(self) -> None:
        """Is told that the state is another than the last step left."""
        self._rate_watch.forget()
