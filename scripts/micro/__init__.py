"""Exported programs on emulated boards: TensorFlow Lite Micro built from its sources, and QEMU."""
