"""Mistakes around accelerate() of sirtaki.torch.fsdp: one line on every rank, which names the fix."""

from __future__ import annotations

from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import sirtaki.torch as hvd
from ranks.error_cases import fails
from ranks.torch_distributed.fsdp_support import accelerated, equal_between_replicas, mesh, net, sgd, sharded, train
from sirtaki.torch import ddp
from sirtaki.torch.fsdp import accelerate


def refused(model: nn.Module, text: str, how: object = None, kind: type = ValueError) -> None:
    fails(lambda: accelerate(model, sgd(model), mesh() if how is None else how), kind, text)


def case_meshes() -> None:
    model = sharded()
    refused(model, "needs the DeviceMesh of the job", how="cpu")
    refused(model, "two dimensions", how=mesh()["shard"])
    refused(model, "two dimensions", how=init_device_mesh("cpu", (4,), mesh_dim_names=("shard",)))
    crossed = DeviceMesh("cpu", [[0, 3], [2, 1]], mesh_dim_names=("replicate", "shard"))
    refused(model, "the model is sharded over ranks", how=crossed)
    few = DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("replicate", "shard"))
    if dist.get_rank() > 1:
        refused(model, "is none of them", how=few)
    turned = fully_shard(net(), mesh=mesh()["replicate"])
    refused(turned, 'mesh=mesh["shard"]')


def case_local_updates_of_an_elastic_job() -> None:
    model = sharded()
    with mock.patch("sirtaki.basics.is_elastic", return_value=True):
        fails(lambda: accelerate(model, sgd(model), mesh(), local_updates=4), NotImplementedError, "elastic.min")


def case_models_that_are_sharded_otherwise() -> None:
    refused(net(), 'call fully_shard(model, mesh=mesh["shard"])')
    refused(fully_shard(net(), mesh=mesh()), "the dimension of the shards alone", kind=NotImplementedError)
    inner = net()
    fully_shard(inner[2], mesh=mesh()["shard"])
    refused(inner, "fully_shard() for the root module")
    inner = net()
    fully_shard(inner[0], mesh=mesh()["replicate"])
    refused(fully_shard(inner, mesh=mesh()["shard"]), "over different ranks")
    three = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("dp", "tp", "pp"))
    refused(fully_shard(net(), mesh=three["dp", "tp"]), "without tensor", kind=NotImplementedError)
    with torch.device("meta"):
        bare = nn.Linear(4, 4)
    refused(fully_shard(bare, mesh=mesh()["shard"]), "meta device")


def case_optimizers() -> None:
    model = sharded()
    fails(lambda: accelerate(model, model, mesh()), ValueError, "expected a torch.optim.Optimizer")
    part = torch.optim.SGD(list(model[0].parameters()), lr=0.1)
    fails(lambda: accelerate(model, part, mesh()), ValueError, "2.weight", "not in the optimizer")
    before = net()
    early = sgd(before)
    fails(lambda: accelerate(sharded(before), early, mesh()), ValueError, "make the optimizer after fully_shard()")
    model, optimizer, _ = accelerated()
    fails(lambda: accelerate(model, optimizer, mesh()), ValueError, "give it the plain optimizer")
    model = sharded()
    lbfgs = torch.optim.LBFGS([p for p in model.parameters() if p.requires_grad])
    fails(lambda: accelerate(model, lbfgs, mesh(), local_updates=4), NotImplementedError, "LBFGS")
    own = type("Own", (), {"compress": lambda self, t: (t, None), "decompress": lambda self, t, _: t})()
    fails(lambda: accelerate(model, sgd(model), mesh(), compression=own), ValueError, "a compressor of your own")


def case_other_doors_name_this_one() -> None:
    model = sharded()
    fails(lambda: ddp.accelerate(model, sgd(model)), NotImplementedError, "sirtaki.torch.fsdp")
    fails(lambda: hvd.DistributedOptimizer(sgd(model)), NotImplementedError, "sirtaki.torch.fsdp.accelerate()")


def case_an_old_torch() -> None:
    found, version = fsdp.fully_shard, torch.__version__
    del fsdp.fully_shard
    torch.__version__ = "2.5.1"
    try:
        needs = 'needs torch 2.6 or newer, and this is 2.5.1: pip install "torch>=2.6"'
        refused(net(), needs, kind=NotImplementedError)
    finally:
        fsdp.fully_shard, torch.__version__ = found, version


def case_a_parameter_that_is_unfrozen_later() -> None:
    model, optimizer, _ = accelerated(make=lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    train(model, optimizer, range(2))
    model[4].requires_grad_(True)
    fails(lambda: train(model, optimizer, [2]), RuntimeError, "parameter 4 of group 0")
    model[4].requires_grad_(False)
    for p in model[4].parameters():
        p.grad = None
    optimizer.zero_grad()
    train(model, optimizer, range(3, 5))
    equal_between_replicas(model)
