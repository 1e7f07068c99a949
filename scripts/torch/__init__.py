"""PyTorch beside the compiler: how it is installed, and nets of its libraries, trained by both."""
