"""Trainings of one rank for benchmarks/gpu/training.py: the net of examples/pytorch_mnist.py on a device.

Thread: the main thread of the rank. Does not: compare; the measurements go to the main process.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import sirtaki.torch as hvd
from benchmarks.baselines.torch_compressed import LowRank
from benchmarks.gpu.smoke import settings
from examples.fashion_mnist import FashionNet, Split, count_correct, load

BATCH = 64  # of a rank
LR, MOMENTUM = 0.0125, 0.9  # LR for one rank, as in the example
CPU, DDP, POWERSGD = "cpu", "ddp", "powersgd of torch"
POWERSGD_RANK = 4


@dataclass(frozen=True)
class Way:
    """Method that averages gradients; `how`: arguments of DistributedOptimizer."""

    name: str
    how: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Length:
    """Length of the training of each way."""

    seeds: tuple[int, ...]
    epochs: int
    steps: int  # of an epoch at most; 0: all
    block: int  # steps of a sample of the rate


def on(split: Split, device: torch.device) -> Split:
    """Returns the same images on `device`."""
    return Split(split.images.to(device), split.labels.to(device))


def wait_for(device: torch.device) -> None:
    """Returns when the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wrapped(way: Way, model: nn.Module, store: str) -> tuple[nn.Module, Any]:
    """Returns the model and optimizer for the steps of a way."""
    plain = torch.optim.SGD(model.parameters(), lr=LR * hvd.size(), momentum=MOMENTUM)
    if way.name in (DDP, POWERSGD):
        if not dist.is_initialized():
            shared = dist.FileStore(store, hvd.size())
            dist.init_process_group("gloo", store=shared, rank=hvd.rank(), world_size=hvd.size())
        if way.name == DDP:
            return nn.parallel.DistributedDataParallel(model), plain
        # The seed gives every rank the same weights, so no broadcast is necessary.
        exchange = LowRank(list(model.parameters()), POWERSGD_RANK, 0, dist.all_reduce, hvd.size())
        plain.register_step_pre_hook(lambda *_: exchange.run())
        return model, plain
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), **way.how)


@dataclass(frozen=True)
class Place:
    """Device and data of a rank; `store`: file of the rendezvous of DDP."""

    device: torch.device
    data: Split
    test: Split
    store: str


def train(way: Way, length: Length, seed: int, place: Place) -> dict[str, Any]:
    """Trains once; returns seconds of blocks of steps, accuracy in percent, and a digest of the parameters."""
    torch.manual_seed(seed)
    net = FashionNet().to(place.device)
    model, optimizer = wrapped(way, net, place.store)
    blocks: list[float] = []
    done, begin = 0, time.perf_counter()
    for epoch in range(length.epochs):
        batches = place.data.batches(BATCH, 1000 * seed + epoch, hvd.rank(), hvd.size())
        for step, (images, labels) in enumerate(batches):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            done += 1
            if done % length.block == 0:
                wait_for(place.device)
                now = time.perf_counter()
                blocks.append(now - begin)
                begin = now
            if step + 1 == length.steps:
                break
    if "local_updates" in way.how:
        optimizer.drain()
    if way.name not in (DDP, POWERSGD):
        optimizer.flush()
    wait_for(place.device)
    digest = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in net.parameters())).hexdigest()
    accuracy = 100 * count_correct(net, place.test) / len(place.test)
    return {"blocks": blocks[1:], "accuracy": accuracy, "digest": digest}


def rank_main(way: Way, length: Length, kind: str, store: str) -> list[Any]:
    """Runs all trainings of a way on this rank."""
    if kind == "cuda":
        # The variables must be set before any library opens NCCL; they do not affect ways without NCCL.
        os.environ.update(settings(int(os.environ["SIRTAKI_JOB_RANK"])))
    hvd.init()
    device = torch.device(kind, 0) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False
    place = Place(device, on(load(train=True), device), on(load(train=False), device), store)
    found = [train(way, length, seed, place) for seed in length.seeds]
    if dist.is_initialized():
        dist.destroy_process_group()
    hvd.shutdown()
    return found
