"""Results for torch tensors on a GPU against the results on the CPU, bit by bit, on several ranks of one machine.

    python -m benchmarks.gpu.correctness [--nccl] [--device cpu]

Started by benchmarks/gpu/run.sh. Ranks take the GPUs of the machine in turn, so that one GPU is enough. Tensors use
host memory; with --nccl, whatever NCCL can carry has to use it: every rank is a host of its own, because NCCL refuses
ranks of one host that share a GPU. `--device cpu` compares the CPU with itself, to try this program without a GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import sirtaki
import sirtaki.torch as hvd
from benchmarks.gpu.smoke import settings

RANKS = 2
#: Codecs whose numbers NCCL sums as halves. An average then divides before it adds, which costs subnormal numbers
#: their last bits; HALF_ERROR bounds the difference of parameters after all steps.
HALVES = ("fp16", "bf16")
HALF_ERROR = 1e-6
#: Codecs with wire=gather encode on the GPU, the others on the CPU.
CODECS = (
    "none",
    "fp16",
    "int8:min=0,ndim=0",
    "int8:min=0,ndim=0,wire=gather",
    "fp8_e4m3:min=0,ndim=0,wire=gather",
    "twobit:min=0,ndim=0",
    "twobit:min=0,ndim=0,wire=gather",
    "threshold_sparse:min=0,ndim=0,wire=gather,density=5%",
    "group_topk:min=0,ndim=0",
    "group_topk:min=0,ndim=0,wire=gather",
    "group_topk:min=0,ndim=0,wire=gather,values=f16,group=300",
    "powersgd:min=0",
)
STEPS = 6
LIMIT_SECONDS = 220


def devices(kind: str) -> Iterator[torch.device]:
    """Yields the CPU, then the device whose results have to equal those of the CPU."""
    yield torch.device("cpu")
    yield torch.device(kind, hvd.local_rank() % torch.cuda.device_count()) if kind == "cuda" else torch.device(kind)


def values(salt: int, *shape: int) -> Tensor:
    """Returns numbers that differ by rank and are the same in each call; sums of them are not exact."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * salt + hvd.rank()))


def operations(device: torch.device) -> list[Tensor]:
    """Runs every operation on tensors of several layouts; returns all results."""
    given = values(1, 6, 500).to(device)
    out = [hvd.allreduce(given, name="sum", op=hvd.Sum), hvd.allreduce(given.t(), name="turned", op=hvd.Average)]
    out.append(hvd.allreduce(given.half(), name="half", op=hvd.Max, prescale_factor=0.5))
    out.append(hvd.allreduce_(given.clone(), name="in place", op=hvd.Average))
    out.append(hvd.broadcast(given, 1, name="broadcast"))
    out.append(hvd.allgather(given[: hvd.rank() + 1], name="gathered"))
    out.append(hvd.alltoall(given, name="all to all"))
    out.append(hvd.reducescatter(given, name="scattered", op=hvd.Sum))
    out.append(hvd.allreduce(torch.empty(0, device=device), name="empty"))
    out.extend(hvd.grouped_allreduce([given, given[0]], name="group"))
    return out


def other_streams(device: torch.device) -> list[Tensor]:
    """Results of operations whose input is written on one stream and used on another, behind much other work."""
    if device.type != "cuda":
        return [hvd.allreduce(values(2, 4096) * 3.0, name="streams", op=hvd.Sum) + 1.0]
    given, one, two = values(2, 4096).to(device), torch.cuda.Stream(device), torch.cuda.Stream(device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(one):
        torch.cuda._sleep(100_000_000)
        handle = hvd.allreduce_async(given * 3.0, name="streams", op=hvd.Sum)
    with torch.cuda.stream(two):
        result = hvd.synchronize(handle) + 1.0
    torch.cuda.synchronize(device)
    return [result]


def training(device: torch.device, codec: str, sync: str, local: int | None) -> list[Tensor]:
    """Returns the parameters after some steps whose gradients are the same on every device."""
    params = [nn.Parameter(values(3, 80, 40).to(device)), nn.Parameter(values(4, 700).to(device))]
    unused = nn.Parameter(torch.zeros(3, device=device))
    names = [("weight", params[0]), ("bias", params[1]), ("unused", unused)]
    hvd.broadcast_parameters(names, 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD([*params, unused], lr=0.5), names, compression=codec, sync=sync, local_updates=local
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        sum((p * values(10 * step + i, *p.shape).to(device)).sum() for i, p in enumerate(params)).backward()
        optimizer.step()
    if local is not None:
        optimizer.drain()
    optimizer.flush()
    return [p.detach() for p in params]


def cases() -> Iterator[tuple[str, Callable[[torch.device], list[Tensor]]]]:
    """Yields the cases: name, and function from device to results."""
    yield "operations", operations
    yield "streams", other_streams
    for codec in CODECS:
        yield f"training, {codec}", lambda device, codec=codec: training(device, codec, "backward", None)
    yield "training, sync=step", lambda device: training(device, "none", "step", None)
    yield "local updates", lambda device: training(device, "none", "backward", 2)


def difference(one: list[Tensor], other: list[Tensor], where: torch.device, error: float = 0.0) -> str:
    """Describes the first difference above `error`; empty if all results are equal."""
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        if b.device.type != where.type:
            return f"result {number} is on {b.device}"
        if a.shape != b.shape or not torch.allclose(a, b.cpu(), rtol=0.0, atol=error):
            return f"result {number} differs"
    return ""


def over_nccl() -> str:
    """Complains if this process has given nothing to NCCL; else empty."""
    return "" if int(sirtaki.stats()["device.nccl_bytes"]) > 0 else "NCCL has carried nothing"


def compare(kind: str, nccl: bool) -> dict[str, str]:
    """Compares all cases on this rank; returns the difference by case, an empty text for equal results."""
    if nccl:
        # The variables must be set before any library opens NCCL.
        os.environ.update(settings(int(os.environ["SIRTAKI_JOB_RANK"])))
    hvd.init()
    cpu, there = devices(kind)
    if there.type == "cuda":
        torch.cuda.set_device(there)
    found: dict[str, str] = {}
    for name, case in cases():
        halves = nccl and name.removeprefix("training, ").startswith(HALVES)
        found[name] = difference(case(cpu), case(there), there, HALF_ERROR if halves else 0.0)
    if nccl:
        found["NCCL"] = over_nccl()
    hvd.shutdown()
    return found


def main() -> int:
    """Returns 0 if all results have the bits of the CPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.correctness", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--nccl", action="store_true", help="require NCCL for what it can carry")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("correctness: no GPU: torch finds no CUDA device", file=sys.stderr)
        return 2
    variables = {"SIRTAKI_DEVICE_DATA": "nccl" if arguments.nccl else "host"}
    results: list[dict[str, Any]] = sirtaki.run(
        compare, (arguments.device, arguments.nccl), np=RANKS, env=variables, timeout=LIMIT_SECONDS
    )
    wrong = {f"{name}, rank {rank}": text for rank, found in enumerate(results) for name, text in found.items() if text}
    for name in results[0]:
        bad = [f"rank {rank}: {found[name]}" for rank, found in enumerate(results) if found[name]]
        print(f"{'; '.join(bad) or 'as on the CPU':40} {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
