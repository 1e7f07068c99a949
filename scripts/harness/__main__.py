"""`scripts/device`."""

from scripts.harness.cli import main

if __name__ == "__main__":
    main()
