"""Federated runs that last: kills, simulations, and what stays with each client."""
