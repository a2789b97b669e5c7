"""Times of the operations of torch that do the work of the CUDA kernels, from the published formulas.

    python -m benchmarks.gpu.baselines [rounds]

Started by benchmarks.gpu.report. Sizes, distributions and rounds are those of timings.cu. Prints a JSON object for each
family of operations once it is timed, a line each: `rounds` (milliseconds by "WAY kernel/numbers"), `left_out` (the
reason, by the same names). A way is `torch`, `compiled` for torch.compile of the formula, `foreach` or `fused` for an
optimizer of torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

DEVICE = "cuda"
ELEMENTS = 2**26
RANKS = 8
REPEATS = 3
GROUPS = ((256, 4), (512, 5), (1024, 10), (1024, 64), (4096, 41), (4096, 256))
#: Thresholds of timings.cu: about 1 % of the elements reach the first with the residual, the second without it.
THRESHOLD, ALONE = 0.0365, 0.0258
STEP = 2.0**-6
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
FILTERS, FILTER_SIZE = 65536, 576
LISTS = (160, 1000)
#: Sizes of the arrays of a list are rounded down to a multiple of this many elements, as in timings.cu.
ALIGNED = 64

Run = Callable[[], object]


# ---- formulas ------------------------------------------------------------------------------


def group_topk(gradient: Tensor, residual: Tensor, group: int, keep: int) -> tuple[Tensor, Tensor, Tensor]:
    """Selects the largest elements of each group with error feedback: values, places, new residual."""
    owed = torch.add(gradient, residual).view(-1, group)
    places = torch.topk(owed.abs(), keep, dim=1, sorted=False).indices
    values = torch.gather(owed, 1, places)
    return values, places, owed.scatter(1, places, 0.0)


def threshold(gradient: Tensor, residual: Tensor, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """Threshold sparsification of GRACE with its residual memory."""
    owed = gradient + residual
    (places,) = torch.where(owed.abs() >= least)
    values = owed[places]
    return values, places, owed - torch.zeros_like(owed).scatter_(0, places, values)


def twobit(gradient: Tensor, residual: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Two-bit compression of MXNet: codes of -1, 0 and 1, a byte each, and the new residual."""
    owed = gradient + residual
    codes = (owed >= step).to(torch.int8) - (owed <= -step).to(torch.int8)
    return codes, owed - step * codes


def packed_twobit(gradient: Tensor, residual: Tensor, step: float) -> tuple[Tensor, Tensor]:
    """Two-bit compression with four codes in a byte: 11 up, 10 down."""
    codes, left = twobit(gradient, residual, step)
    bits = ((codes != 0).to(torch.uint8) << 1 | (codes > 0).to(torch.uint8)).view(-1, 4)
    return bits[:, 0] | bits[:, 1] << 2 | bits[:, 2] << 4 | bits[:, 3] << 6, left


def twobit_sum(payloads: list[Tensor], step: float) -> Tensor:
    """Sum of packed codes of several ranks."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=payloads[0].device)
    total = torch.zeros(4 * payloads[0].numel(), device=payloads[0].device)
    for payload in payloads:
        codes = payload.unsqueeze(1) >> shifts & 3
        total += ((codes == 3).to(torch.int8) - (codes == 2).to(torch.int8)).view(-1) * step
    return total


def sparse_sum(payloads: list[tuple[Tensor, Tensor]], total: Tensor) -> Tensor:
    """Sum of values at places of several ranks."""
    total.zero_()
    for values, places in payloads:
        total.index_add_(0, places, values)
    return total


def group_topk_sum(payloads: list[tuple[Tensor, Tensor]], total: Tensor) -> Tensor:
    """Sum of values of several ranks at places within groups."""
    total.zero_()
    for values, places in payloads:
        total.scatter_add_(1, places, values)
    return total


def momentum(gradient: Tensor, velocity: Tensor, factor: float) -> Tensor:
    """Nesterov momentum before a selection."""
    velocity.mul_(factor).add_(gradient)
    return torch.add(gradient, velocity, alpha=factor)


def filter_norms(gradient: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of gradient and residual, and the norm of each filter of the sum."""
    owed = gradient + residual
    return owed, owed.norm(dim=1)


def filter_select(norms: Tensor, keep: int) -> Tensor:
    """Indices of the filters with the largest norms, in ascending order."""
    return torch.topk(norms, keep, sorted=False).indices.sort().values


def filter_gather(owed: Tensor, kept: Tensor) -> Tensor:
    """Returns the elements of the kept filters, and sets them to 0 in the new residual."""
    values = owed.index_select(0, kept)
    owed.index_fill_(0, kept, 0.0)
    return values


# ---- timed runs ----------------------------------------------------------------------------


def normal(*shape: int) -> Tensor:
    """Returns numbers with the distribution of timings.cu."""
    return torch.randn(*shape, device=DEVICE) * 0.01


def group_topk_runs() -> Iterator[tuple[str, Run]]:
    """Encoding as operations and compiled, and a sum."""
    gradient, residual = normal(ELEMENTS), normal(ELEMENTS)
    compiled = torch.compile(group_topk, dynamic=False)
    for group, keep in GROUPS:
        name = f"group_topk_encode/{group}/{keep}"
        yield f"torch {name}", partial(group_topk, gradient, residual, group, keep)
        yield f"compiled {name}", partial(compiled, gradient, residual, group, keep)
    payloads = [group_topk(normal(ELEMENTS), residual, 512, 5)[:2] for _ in range(RANKS)]
    yield "torch group_topk_sum/512/5/8", partial(group_topk_sum, payloads, gradient.view(-1, 512).clone())


def twobit_runs() -> Iterator[tuple[str, Run]]:
    """Encoding as operations, with packed codes, and compiled, without; a sum."""
    gradient, residual = normal(ELEMENTS), normal(ELEMENTS)
    yield "torch twobit_encode", partial(packed_twobit, gradient, residual, STEP)
    yield "compiled twobit_encode", partial(torch.compile(twobit, dynamic=False), gradient, residual, STEP)
    payloads = [packed_twobit(normal(ELEMENTS), torch.zeros_like(gradient), STEP)[0] for _ in range(RANKS)]
    yield "torch twobit_sum/8", partial(twobit_sum, payloads, STEP)


def sparse_runs() -> Iterator[tuple[str, Run]]:
    """Threshold sparsification, and a sum of its payloads."""
    gradient, residual = normal(ELEMENTS), normal(ELEMENTS)
    yield "torch threshold_select", partial(threshold, gradient, residual, THRESHOLD)
    nothing = torch.zeros_like(gradient)
    payloads = [threshold(normal(ELEMENTS), nothing, ALONE)[:2] for _ in range(RANKS)]
    yield "torch sparse_sum/8", partial(sparse_sum, payloads, torch.empty_like(gradient))


def element_runs() -> Iterator[tuple[str, Run]]:
    """Copies, casts of one array and of many, momentum."""
    gradient, other = normal(ELEMENTS), normal(ELEMENTS)
    yield "torch copy", partial(other.copy_, gradient)
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        half = gradient.to(dtype)
        yield f"torch cast_to_{name}", partial(half.copy_, gradient)
        yield f"torch cast_from_{name}", partial(other.copy_, half)
    for count in LISTS:
        size = list_elements(count)
        floats = [gradient[i * size : (i + 1) * size] for i in range(count)]
        buffer = torch.empty(count * size, dtype=torch.float16, device=DEVICE)
        halves = [buffer[i * size : (i + 1) * size] for i in range(count)]
        yield f"torch cast_list/{count}", partial(torch._foreach_copy_, halves, floats)
    yield "torch momentum_correct", partial(momentum, gradient, torch.zeros_like(gradient), 0.9)


def list_elements(count: int) -> int:
    """Elements of each array of a list: 64 KiB at most if the list is long; short lists share all elements, aligned."""
    return ELEMENTS // count // ALIGNED * ALIGNED if count < 1000 else min(16384, ELEMENTS // count)


def filter_runs() -> Iterator[tuple[str, Run]]:
    """The three steps of a selection of filters."""
    gradient, residual = normal(FILTERS, FILTER_SIZE), normal(FILTERS, FILTER_SIZE)
    keep = FILTERS // 10
    yield f"torch filter_norms/{FILTER_SIZE}", partial(filter_norms, gradient, residual)
    owed, norms = filter_norms(gradient, residual)
    yield f"torch filter_select/{FILTERS}", partial(filter_select, norms, keep)
    yield f"torch filter_gather/{FILTER_SIZE}", partial(filter_gather, owed, filter_select(norms, keep))


def outer_runs() -> Iterator[tuple[str, Run]]:
    """SGD with Nesterov momentum and a ready gradient; the update overwrites the parameters."""
    for way in ("foreach", "fused"):
        param = torch.nn.Parameter(normal(ELEMENTS))
        param.grad = normal(ELEMENTS)
        optimizer = torch.optim.SGD([param], lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True, **{way: True})
        yield f"{way} outer_update", optimizer.step


FAMILIES = (element_runs, group_topk_runs, twobit_runs, sparse_runs, filter_runs, outer_runs)


def time_of(run: Run) -> float:
    """Milliseconds of one run: the mean of a few runs in sequence."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    run()
    begin.record()
    for _ in range(REPEATS):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / REPEATS


def main() -> int:
    """Times the runs family by family, since the data of all families together are large."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    if not torch.cuda.is_available():
        print("baselines: torch finds no CUDA device", file=sys.stderr)
        return 2
    torch.manual_seed(1)
    for family in FAMILIES:
        runs = dict(family())
        left_out: dict[str, str] = {}
        for name, run in list(runs.items()):
            try:
                run()
            except Exception as error:  # a missing compiler, too little memory
                left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                del runs[name]
        rounds = [{name: time_of(run) for name, run in runs.items()} for _ in range(count)]
        print(json.dumps({"rounds": rounds, "left_out": left_out}), flush=True)
        runs.clear()
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
