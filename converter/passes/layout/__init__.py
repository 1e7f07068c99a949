"""Layout assignment: pictures lie with their channels last, as kernels read them, and transposes end at the border."""

from converter.passes.layout.assign import assign_layouts

__all__ = ["assign_layouts"]
