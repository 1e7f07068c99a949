"""The process of the command line: `python -m converter`, and `pocketune` where it is installed."""

from __future__ import annotations

from converter.support.interrupts import end_at_once

TYPE_CHECKING = False  # that of typing takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line; see `converter.cli`."""
    end_at_once()  # before what takes a while to import
    from converter.support.logs import hush

    hush()  # the process is ours, and libraries read it as they are loaded
    from converter.cli import main as run

    run()


if __name__ == "__main__":
    main()
