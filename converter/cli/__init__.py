"""Command line interface: build, inspect, schemes. Results go to stdout, narration to stderr."""

from converter.cli.app import main

__all__ = ["main"]
