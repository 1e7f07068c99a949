"""Files around the sources that make a folder a library of Arduino and a component of ESP-IDF."""

from __future__ import annotations

from collections.abc import Mapping

from converter.program.manifest import Manifest
from converter.support.words import size
from converter.tools.micro.entries import row_values

#: Where each file lies in the folder.
Files = dict[str, str]


def library(manifest: Manifest, sources: list[str], sizes: Mapping[str, int]) -> Files:
    """Return the files by path.

    Args:
        manifest: of the program.
        sources: the names of the C++ files to compile.
        sizes: bytes by what they are for, for the page.
    """
    name = " ".join(manifest.name.split())
    listed = "\n".join(f"         src/{source}" for source in sources)
    taken = ", ".join(f"`{spec.label}` ({spec.dtype}{list(spec.shape[1:]) or ''})" for spec in row_values(manifest))
    table = "\n".join(f"| {what} | {size(count)} |" for what, count in sizes.items())
    return {
        "library.properties": _ARDUINO.format(name=name),
        "CMakeLists.txt": _CMAKE.format(sources=listed),
        "idf_component.yml": _IDF.format(name=name),
        "README.md": _README.format(name=name, taken=taken, table=table),
    }


_ARDUINO = """name=Pocketune model
version=1.0.0
author=Made by pocketune export-c
maintainer=Made by pocketune export-c
sentence=Trains {name} on this board.
paragraph=Needs a library of TensorFlow Lite Micro, whose headers begin with tensorflow/lite/micro.
category=Data Processing
url=
architectures=*
includes=pocketune_model.h
"""
_CMAKE = """idf_component_register(
    SRCS
{sources}
    INCLUDE_DIRS src
    REQUIRES esp-tflite-micro)
"""
_IDF = """description: Trains {name} on this board.
version: 1.0.0
dependencies:
  espressif/esp-tflite-micro: ">=1.3"
"""
_README = """# {name}, which learns on its board

Made by `pocketune export-c`. Copy this folder into `libraries/` of Arduino's sketchbook or `components/` of an ESP-IDF
project; both need TensorFlow Lite Micro beside it. C++17, no heap, no exceptions, no RTTI.

A row is {taken}.

| | |
|---|---|
{table}

```cpp
#include "pocketune_model.h"

alignas(16) static uint8_t arena[pocketune::kArenaBytes];
static pocketune::Model model;

bool start() {{ return model.begin(arena, sizeof arena) == pocketune::Status::kOk; }}
```

`pocketune_model.h` declares `train`, `evaluate` and `infer` for rows of this model, `pocketune.h` `save` and `load`
over functions for your flash, NVS or files. A saved state is a state file of Pocketune: Python, a phone and a page go
on with it.
"""
