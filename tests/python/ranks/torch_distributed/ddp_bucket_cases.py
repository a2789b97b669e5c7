"""accelerate() on DistributedDataParallel: the buckets that hand over its gradients."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranks.torch_distributed.ddp_support import STEPS, accelerated, same_as, sgd, start, train, wrapped
from sirtaki.torch._ddp import small_buckets
from sirtaki.torch._ddp.handle import Acceleration
from sirtaki.torch.ddp import accelerate


def case_default_buckets_become_small_ones() -> None:
    start()
    variants = [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
    ]
    least, small_buckets._LEAST_BYTES = small_buckets._LEAST_BYTES, 4096
    try:
        for options in variants:
            model, optimizer, handle = accelerated("none", bucket_cap_mb=None, **options)
            plain = wrapped(bucket_cap_mb=None, **options)
            train(plain, sgd(plain))
            assert buckets_of_training(model, optimizer, handle) > 1, options
            same_as(plain, model, options)
            # torch.compile reads these.
            assert model.bucket_bytes_cap == plain.bucket_bytes_cap
            assert model.bucket_bytes_cap_default
        assert buckets_of_training(*accelerated("none", bucket_cap_mb=25)) == 1
        # After some steps without it, too.
        late = wrapped(bucket_cap_mb=None)
        optimizer = sgd(late)
        train(late, optimizer, range(2))
        handle = accelerate(late, optimizer, compression="none")
        assert buckets_of_training(late, optimizer, handle, range(2, STEPS)) > 1
        same_as(plain, late, "late")
    finally:
        small_buckets._LEAST_BYTES = least


def buckets_of_training(
    model: nn.Module, optimizer: torch.optim.Optimizer, handle: Acceleration, steps: range = range(STEPS)
) -> int:
    """Trains; returns the number of buckets of the last backward."""
    indices: list[int] = []
    submit = handle._reducer.hook

    def hook(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        indices.append(bucket.index())
        return submit(bucket)

    handle._reducer.hook = hook
    train(model, optimizer, steps)
    return indices[-1] + 1


def case_buckets_get_no_larger_than_those_of_torch() -> None:
    start()
    model = wrapped(bucket_cap_mb=None)
    reducer, least = model.reducer, small_buckets._LEAST_BYTES
    small_buckets._LEAST_BYTES = model.bucket_bytes_cap
    try:
        small_buckets.make_small_buckets(model)
        assert model.reducer is reducer
    finally:
        small_buckets._LEAST_BYTES = least
