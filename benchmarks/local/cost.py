"""Cost of local updates on a network where they gain no time, and their memory.

On loopback `auto` has to stay with synchronous steps, which have to take no longer than steps without `auto`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.common.contest import ratio_row
from benchmarks.common.group import Group
from benchmarks.common.rig import LOOPBACK, Options
from benchmarks.local.cases import RANKS, SYSTEM, Task, local, recipe_of, train
from benchmarks.results import Row, Store, make_row
from benchmarks.statistics import exactly
from benchmarks.training.trainings import time_steps

#: Task whose gradients take a small part of a step even if all ranks share the processors.
FAST = Task("transformer", 64, 100_000)
WARMUP, WARM_STEPS, BLOCK_STEPS, BLOCKS = 16, 100, 10, 10
OFF, AUTO = "off", "auto"
COSTS_NOTHING, EXPOSED = 0.97, 0.10

#: Task whose tensors are small enough for fragments of about the same size.
EVEN = Task("transformer", 8, 100_000)
INTERVAL, FRAGMENTS, STEPS = 8, 4, 200
#: Synchronous steps before local updates begin; figures leave them out.
LOCAL_WARMUP = 20
STEP_COST = 0.01


def measure(options: Options, store: Store) -> None:
    """Measures the parts that the store does not hold yet."""
    if store.samples("cost/fast") is None:
        store.keep("cost/fast", _fast(options.quick))
    if store.samples("cost/local") is None:
        text = f"fixed:steps={INTERVAL},delay=2,warmup={LOCAL_WARMUP}"
        recipe = recipe_of(EVEN, 1, local(text, STEPS, fragments=FRAGMENTS), curve=STEPS)
        with Group(RANKS, [SYSTEM]) as group:
            store.keep("cost/local", train(group, recipe, 100 if options.quick else STEPS))


def _fast(quick: bool) -> dict[str, Any]:
    auto = local(f"auto:warmup={WARMUP}", FAST.steps)
    trainings = {
        OFF: (SYSTEM, recipe_of(FAST, 1, {}, watch=None, curve=0)),
        AUTO: (SYSTEM, recipe_of(FAST, 1, auto, curve=0)),
    }
    with Group(RANKS, [SYSTEM]) as group:
        warm, blocks = (30, 2) if quick else (WARM_STEPS, BLOCKS)
        seconds = time_steps(group, trainings, warm=warm, blocks=blocks, steps=BLOCK_STEPS)
        watched = group.call("learn_watched", name=AUTO)[0]
    return {"seconds": seconds, "intervals": [row[0] for row in watched["paces"]], "local": watched["local"]}


def rows(store: Store) -> list[Row]:
    """Rows of interval and step on a fast network, of memory, and of processor time of the training thread."""
    found = store.samples("cost/fast")
    params = {"part": "cost", "task": FAST.net, "net": LOOPBACK, "ranks": RANKS}
    cost = found["local"]["synchronous_cost"]
    out = [
        make_row("longest_interval", params, exactly(max(found["intervals"])), "steps", "lower", target=1.0),
        make_row("synchronous_steps_wait", params, exactly(cost), "share", "lower", target=EXPOSED),
        ratio_row("rate_over_off", params, found["seconds"][OFF], found["seconds"][AUTO], OFF, target=COSTS_NOTHING),
    ]
    kept = store.samples("cost/local")
    pace, ends = kept["paces"][0], kept["ends"]
    fragments = len(kept["local"]["versions"])
    params = {"part": "cost", "task": EVEN.net, "net": LOOPBACK, "ranks": RANKS, "fragments": fragments}
    # The last round is shorter, so more fragments are in flight at once, and the drain of the last step has all of
    # them in flight; neither counts as the usual memory.
    model = kept["local"]["anchor_bytes"]
    paces = list(zip(pace["scratch_bytes"], pace["interval"], strict=True))[:-1]
    whole = [size for size, steps in paces if steps == INTERVAL]
    copies = exactly(1 + max(whole) / model)
    target = 1 + 1 / fragments
    out.append(make_row("copies_of_the_model", params, copies, "copies", "lower", target=target))
    draining = exactly(1 + pace["scratch_bytes"][-1] / model)
    out.append(make_row("copies_of_the_model_in_a_drain", params, draining, "copies", "lower"))
    first = next(i for i, steps in enumerate(pace["interval"]) if steps > 1)
    busy = pace["busy_seconds"][-2] - pace["busy_seconds"][first]
    share = exactly(busy / (ends[-2] - ends[first]))
    out.append(make_row("step_cost", params, share, "share", "lower", target=STEP_COST))
    return out
