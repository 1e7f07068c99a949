"""Delegate log parser: operators that LiteRT's GPU delegate does not take, natively and in a browser."""

from __future__ import annotations

import re

from converter.runtime.engines.engine import Refusal


def refusals(log: str) -> list[Refusal]:
    """Read the log, each block of which names operators and the reason, and how many are left out.

    What an engine gives up at when all is taken, and what is wrong in a shader, names none.
    """
    found, listening = dict[Refusal, None](), False
    for line in log.splitlines():
        if "operations are not supported by GPU delegate" in line:
            listening = True
        elif listening and re.match(r"\d+ operations will run on the GPU", line):
            listening = False
        elif listening and (match := re.match(r"([A-Z][A-Z0-9_]*)(?: v\d+)?(?:: |$)(.*)", line)):
            found[Refusal(match[1], match[2].strip())] = None
        elif match := re.search(r"Failed to create \S*DelegateKernel\w*: (.*)", line):
            found[Refusal("", f"it gave up: {match[1][:200]}")] = None
        elif re.search(r"Error while parsing WGSL|error: .*WGSL|Invalid ShaderModule", line):
            found[Refusal("", f"it made a shader that does not compile: {line.strip()[:200]}")] = None
    return list(found)
