"""Compiler driver: `build` takes a model and options and gives a program; it alone knows every wing."""
