"""Commands, one a file; those of a line or two lie in `app.py`."""
