"""Models of a build: the front end that takes one, found once, and options that concern the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from converter.driver.options import Options
from converter.frontends import table
from converter.frontends.class_room import room_of
from converter.frontends.protocol import OWN_OPTIONS, FrontEnd
from converter.frontends.source import Source


@dataclass(frozen=True)
class Opened:
    """A model, and what imports it.

    Attributes:
        model: in the form that its front end imports; a `Source` is imported already.
        front_end: None of a `Source`.
    """

    model: Any
    front_end: FrontEnd | None

    def source(self, rows: int) -> Source:
        """Return it for a number of rows; what was imported already as it is.

        Raises:
            UsageError: it is not usable.
            UnsupportedError: it holds what cannot be compiled.
        """
        if self.front_end is None:
            imported: Source = self.model
            return imported
        return self.front_end.source(self.model, rows, table.suffix)


def open_model(model: Any, options: Options) -> Opened:
    """Return a model in the form that the options ask of it: its inputs, a length of rows, a part, a fresh last layer.

    Args:
        model: as for `build`, or imported already.
        options: of the build.

    Raises:
        UsageError: no front end takes it, or it has no such form, or says it itself.
    """
    if isinstance(model, Opened):
        return model
    if isinstance(model, Source):
        return Opened(model, None)
    front_end = table.front_end_of(model)
    asked = {name: value for name in OWN_OPTIONS if (value := getattr(options, name)) is not None}
    if room_of(options.classes) is not None:  # of whatever model: it is made when that is imported
        del asked["classes"]
    return Opened(front_end.prepared(model, options.inputs, asked), front_end)


def import_model(model: Any, rows: int) -> Source:
    """Return a model for a number of rows, of which no option asks anything."""
    return open_model(model, Options()).source(rows)


def with_own_augmentation(model: Opened, options: Options) -> Options:
    """Return options of a build in which a word for `augment` is what the front end of that name makes of the model.

    Raises:
        UsageError: the model has no such thing.
    """
    if not isinstance(options.augment, str) or (front_end := table.named(options.augment)) is None:
        return options
    own = front_end.augmentation(model.model)
    return options if own is None else replace(options, augment=own)
