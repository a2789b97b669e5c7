"""The code path of GPU tensors, run with tensors of the CPU: no case needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

import sirtaki.torch as hvd
from ranks.torch.local_cases import differ, distributed, everything, net, train
from sirtaki.torch._optimizer import host_copy

STEPS = 13


@contextmanager
def mirrored(wanted: bool) -> Iterator[None]:
    """Makes the runtime see host copies of parameters and buffers only, if `wanted`."""
    if not wanted:
        yield
        return
    with mock.patch.object(host_copy, "on_gpu", return_value=True):
        yield


def trained(copies: bool, updates: object) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the parameters after some steps and a drain, and the last ones that all ranks had agreed on before."""
    with mirrored(copies):
        model = net()
        optimizer = distributed(model, local_updates=updates)
        hvd.broadcast_parameters(model.state_dict(), 0)
        train(model, optimizer, range(STEPS))
        with optimizer.global_model():
            anchor = [p.detach().clone() for p in model.parameters()]
        with optimizer.synchronous():
            train(model, optimizer, range(STEPS, STEPS + 2))
        train(model, optimizer, range(STEPS + 2, STEPS + 5))
        optimizer.drain()
        end = [t.detach().clone() for t in everything(model)]
    return end, anchor


def case_local_updates_on_copies_have_the_same_bits() -> None:
    """A model on a GPU is merged on the host, in the same way as a model in host memory."""
    # The default delay follows measured times, so both trainings need the same fixed one.
    for updates in ("fixed:steps=4,delay=0", "fixed:steps=3,delay=1"):
        plain, plain_anchor = trained(False, updates)
        ours, ours_anchor = trained(True, updates)
        assert not differ(ours)
        for a, b in zip(plain + plain_anchor, ours + ours_anchor, strict=True):
            assert torch.equal(a, b)
