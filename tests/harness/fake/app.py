"""What `am start` runs on the fake device: the app's part of docs/harness.md, by the host's worker.

python -m tests.harness.fake.app JOB FILES ROOT [WRONG]
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from converter.support.records import decode
from scripts.harness import worker
from scripts.harness.device import LOG, Job


def main() -> None:
    """Runs a job whose paths are the device's, perhaps in a way in which an app can be wrong."""
    path, files, root = map(Path, sys.argv[1:4])
    wrong = sys.argv[4] if len(sys.argv) > 4 else ""
    job = decode(Job, json.loads(path.read_text()), "job")
    local = replace(job, program=f"{root}{job.program}", batches=f"{root}{job.batches}", accelerator="cpu")
    log = files / "harness" / f"{job.id}.{LOG}"
    match wrong:
        case "stalls":
            log.parent.mkdir(exist_ok=True)
            log.write_text("")
            time.sleep(60)
        case "computes-otherwise":
            local = replace(local, learning_rate=1.5 * job.learning_rate)
        case "fails":
            local = replace(local, program="/nowhere.tflite")
    worker.run(local, log.parent)
    text = log.read_text() if log.exists() else ""
    if wrong == "grows-hot":
        log.write_text(text.replace('"conditions": {', '"conditions": {"thermal": "severe", ', 2))
    if job.accelerator == "gpu" and not wrong:
        log.write_text(text.replace('"runs": "cpu"', '"runs": "gpu"'))
    if wrong == "has-half-a-gpu":
        log.write_text(text.replace('"runs": "cpu"', '"runs": "gpu"'))
        print("Replacing 86 out of 86 node(s) with delegate (TfLiteXNNPackDelegate) node, yielding 1 partitions.")
        print("Replacing 60 out of 86 node(s) with delegate (TfLiteGpuDelegateV2) node, yielding 9 partitions.")
    if wrong == "falls-back":
        log.write_text(log.read_text().replace('"fallback": null', '"fallback": "no GPU delegate"'))
    if wrong == "writes-half":
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:-2]))
    print(f"done {job.id}", flush=True)


if __name__ == "__main__":
    main()
