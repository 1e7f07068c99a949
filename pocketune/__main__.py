"""The process of the command line: `pocketune`, or `python -m pocketune`."""

from converter.__main__ import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
