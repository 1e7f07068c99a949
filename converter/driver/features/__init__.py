"""Passes by feature (dropout, int8, adapters, ...): a file for each that touches several places of the pipeline."""
