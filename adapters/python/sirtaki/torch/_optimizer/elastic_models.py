"""Models of local updates when the ranks of an elastic job change: all ranks take the mean of those that have trained.

Between merges the model of each rank has steps that no other rank has. The mean keeps a share of the steps of every
rank that is left, as a merge does. A new rank has made none, and takes the mean. Models that are equal, because
gradients are averaged or the last call was drain(), become those of rank 0, as without local updates.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn

from sirtaki import _growth, _notice, basics
from sirtaki._local_sgd import trainings
from sirtaki.elastic._transfer import Transfer
from sirtaki.torch._module_hooks import finish_all_updates
from sirtaki.torch._optimizer.local_sgd import LocalSgd
from sirtaki.torch.functions import allgather_object, broadcast_parameters, share_state
from sirtaki.torch.ops import Sum, grouped_allreduce_

_log = logging.getLogger("sirtaki")


def begin_sync() -> None:
    """Tells all ranks how far each has trained. Collective. Models and optimizers follow, in any order.

    Trainings begin anew on all ranks: a program may call state.sync() during merges, and a new rank may have called its
    model before.
    """
    if basics.size() == 1:
        return
    for training in _trainings_of_all_ranks():
        training.begin_meeting()
    mine = {training.name: training for training in _trainings_of_all_ranks()}
    everywhere = allgather_object({name: training.row() for name, training in mine.items()}, "sirtaki.meeting")
    for name, training in mine.items():
        # Some ranks may lack a training, such as one made in the loop: then all take the model of rank 0.
        rows = [rows[name] for rows in everywhere if name in rows]
        if len(rows) == len(everywhere):
            training.meet(rows)


def sync_model(model: nn.Module, transfer: Transfer) -> None:
    """Makes a model equal on all ranks, in place: the mean where local updates have made it differ, else rank 0's.

    Collective, between begin_sync() and end_sync().

    Args:
        model: the model.
        transfer: gives tensors to the ranks that lack them.
    """
    done: list[Tensor] = []
    root = 0
    for training in _trainings_of_all_ranks():
        counting = _counting(training)
        parts = training.parts_of(model) if counting != [0] else []
        if not parts:
            continue
        rows = training.rows
        root = root if done else counting[0]
        counts = basics.rank() in counting
        if not done:
            buffers = _buffers_of(model)
            _average_exactly(buffers, counts, len(counting))
            done += buffers
        _average(parts, counts, len(counting))
        done += parts
        if basics.rank() == 0:
            _tell([rows[rank][0] for rank in counting])
    known = {_place(tensor) for tensor in done}
    values = sorted(model.state_dict().items())  # ranks need not have made the modules in one order
    rest = {name: value for name, value in values if not (isinstance(value, Tensor) and _place(value) in known)}
    finish_all_updates()
    tensors = list(rest.values())
    left = transfer.deliver(tensors, transfer.lacking(tensors, root))
    broadcast_parameters({name: rest[name] for name, is_left in zip(rest, left, strict=True) if is_left}, root)


def sync_optimizer(optimizer: torch.optim.Optimizer, transfer: Transfer) -> None:
    """Gives an optimizer the state and options of the lowest rank whose model counts. Collective, as sync_model()."""
    if basics.size() == 1:
        return
    roots = [_counting(one)[0] for one in _trainings_of_all_ranks() if one.is_of(optimizer)]
    finish_all_updates()
    share_state(optimizer, roots[0] if roots else 0, "optimizer.state", transfer=transfer)


def end_sync() -> None:
    """Records that the models of all ranks are equal."""
    for training in _trainings_of_all_ranks():
        training.end_meeting()


def _counting(training: LocalSgd) -> list[int]:
    """Returns the ranks whose mean all ranks take; [0] if models are equal, or none counts."""
    counting = [rank for rank, (steps, _, finite) in enumerate(training.rows) if steps > 0 and finite]
    return counting if counting and any(alone for _, alone, _ in training.rows) else [0]


def _trainings_of_all_ranks() -> list[LocalSgd]:
    # Process sets of an earlier epoch are void.
    return [training for training in trainings() if isinstance(training, LocalSgd) and training.of_all_ranks]


def _place(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel()


def _buffers_of(model: nn.Module) -> list[Tensor]:
    """Returns the buffers that are averaged: those of a checkpoint with numbers in floating point."""
    saved = model.state_dict()
    return [b.detach() for name, b in model.named_buffers() if name in saved and b.is_floating_point()]


def _average(tensors: list[Tensor], counts: bool, parts: int) -> None:
    """Sets tensors to their means over the ranks that count, in place. Collective."""
    if not counts:
        for tensor in tensors:
            tensor.zero_()
    for total in grouped_allreduce_(tensors, op=Sum):
        total.div_(parts)


def _average_exactly(tensors: list[Tensor], counts: bool, parts: int) -> None:
    """Does the same by sums in float64, in which equal values, such as those of a mask, keep their bits."""
    sums = [tensor.double() if counts else torch.zeros_like(tensor, dtype=torch.float64) for tensor in tensors]
    if sums:
        _average(sums, counts, parts)
    for tensor, mean in zip(tensors, sums, strict=True):
        tensor.copy_(mean)


def _tell(steps: list[int]) -> None:
    made = f"{steps[0]} steps" if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)} steps"
    _log.warning(
        "local updates begin anew: all ranks have the mean of the models of %d ranks, which had made %s, and the "
        "momentum of the outer optimizer is cleared",
        len(steps),
        made,
    )


def _merge_before_a_rank_leaves() -> None:
    """Lets the steps of a rank that leaves on notice count: its model enters a drain, and no mean later."""
    if not _growth.change_agreed():
        return
    mine = {training.name: training for training in _trainings_of_all_ranks() if training.runs}
    everywhere = allgather_object((_notice.asked(), list(mine)), "sirtaki.leaves")
    if any(leaves for leaves, _ in everywhere):
        for name, training in mine.items():
            if all(name in names for _, names in everywhere):
                training.drain()


_growth.before_change(_merge_before_a_rank_leaves)
