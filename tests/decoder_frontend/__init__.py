"""Language models of GGUF files."""
