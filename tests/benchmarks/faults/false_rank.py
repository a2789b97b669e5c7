"""A rank that knows of no others: a program for tests of the benchmark of elastic training."""

from __future__ import annotations

# It commits a step each 20 ms and knows the loss of each. Arguments: its folder, its slot, the size of the job that it
# writes down, and the number of its steps; 0: until it is ended.
RANK = """
import os, sys, time
from benchmarks.faults.records import Line, Log
slot, size, steps = map(int, sys.argv[2:])
log, step = Log(sys.argv[1], slot), 0
while step == 0 or step != steps:
    step += 1
    log.write(Line(time.monotonic(), os.getpid(), slot, 1, step, size, step, True, 0, 0, [step], 0.0, 1.0))
    time.sleep(0.02)  # lint: allow(sleep) the pace of a rank
"""
