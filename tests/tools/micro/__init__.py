"""Export to C++: what is written, the session on this machine, and on boards that QEMU emulates."""
