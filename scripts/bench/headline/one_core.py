"""Keeps this process and its children to one core and one thread: to be imported before anything that counts cores.

It is not only for times: what a pretraining on several threads sums, and so the net that all sides begin with, depends
on how many there are.
"""

from __future__ import annotations

import os

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
for _pool in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ[_pool] = "1"
