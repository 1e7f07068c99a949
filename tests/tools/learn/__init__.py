"""Tests of `pocketune learn`."""
