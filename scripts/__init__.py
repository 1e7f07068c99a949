"""Tools around the compiler: `python -m scripts.NAME`, or the commands beside this file."""
