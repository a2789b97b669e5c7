"""Warnings about calls that a program forgot and options that have no effect in it.

Without a broadcast of the model each rank trains a different one; without drain() at the end of local updates one
rank's model is saved; `--compression` and `--local-updates` have no effect in a program with FSDP, with a communication
hook of its own for DDP, or without an optimizer of Sirtaki.

Right: each fault is reported once, with the call to make; a correct program gets no warning.
"""

import os
import subprocess
import sys


def train(local_updates: int | None, broadcast: bool, drain: bool) -> None:
    import torch

    import sirtaki.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(2, 2)
    if broadcast:
        hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), local_updates=local_updates
    )
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    if drain:
        optimizer.drain()


def train_with_ddp(own_hook: bool) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    import sirtaki.torch.distributed  # noqa: F401

    dist.init_process_group("sirtaki")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    if own_hook:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    if not own_hook:
        optimizer.drain()
    dist.destroy_process_group()


def use_operations() -> None:
    import torch

    import sirtaki.torch as hvd

    hvd.init()
    hvd.allreduce(torch.ones(2))


RANKS = {
    "no broadcast": lambda: train(1, broadcast=False, drain=False),
    "no drain": lambda: train(4, broadcast=True, drain=False),
    "options with a hook of DDP": lambda: train_with_ddp(own_hook=True),
    "options with DDP": lambda: train_with_ddp(own_hook=False),
    "options with operations": use_operations,
    "options with an optimizer": lambda: train(None, broadcast=True, drain=True),
}
FLAGS = ["--compression", "fp16", "--local-updates", "4"]
#: Text of the one warning that each program must print.
TOLD = {
    "no broadcast": "broadcast_parameters(",
    "no drain": "call the optimizer's drain()",
    "options with a hook of DDP": 'compression.codec ("fp16") and local.updates ("4") have no effect',
    "options with operations": 'compression.codec ("fp16") and local.updates ("4") have no effect',
}


def judge() -> int:
    launcher = os.path.join(os.path.dirname(sys.executable), "sirtakirun")
    wrong = False
    for how in RANKS:
        flags = FLAGS if how.startswith("options") else []
        done = subprocess.run(
            [launcher, "-np", "2", *flags, sys.executable, __file__, "rank", how],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env={**os.environ, "SIRTAKI_REPORT_END": "false", "OMP_NUM_THREADS": "1"},
        )
        output = done.stdout + done.stderr
        counts = {text: output.count(text) for text in dict.fromkeys(TOLD.values())}
        good = done.returncode == 0 and counts == {text: int(TOLD.get(how) == text) for text in counts}
        wrong |= not good
        print(f"{how}: {'right' if good else 'WRONG'}: exit {done.returncode}")
        if not good:
            print(output)
    return int(wrong)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        RANKS[sys.argv[2]]()
    else:
        sys.exit(judge())
