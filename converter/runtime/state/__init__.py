"""States outside of a session: files, names of PyTorch, and what another program takes of them."""
