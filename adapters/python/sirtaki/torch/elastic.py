"""What of horovod.torch.elastic works without ranks that join and leave a running job: the sampler.

ElasticSampler tells which samples of an epoch are done, so that a job that starts again from a checkpoint, with as many
ranks or others, goes on in the middle of it. run() and TorchState say what to do without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any, NoReturn

import torch
from torch.utils.data import Sampler

from sirtaki import basics, errors
from sirtaki.torch.functions import allgather_object

_INSTEAD = (
    "ranks cannot join or leave a running job yet. Save checkpoints (model and optimizer, and ElasticSampler's "
    "gather_state() for the place in the epoch), and start the job again with the ranks there are: sirtakirun ends a "
    "job as soon as a rank is lost"
)


class ElasticSampler(Sampler[int]):
    """Divides what is left of a dataset among the ranks.

    In each epoch every sample comes once; where the ranks do not divide what is left, some come again. Tell what is
    done with record_batch(). The rest is divided anew by load_state_dict(), of what gather_state() gave all ranks: what
    one rank alone knows would give ranks different numbers of samples, and the next collective would not end.

    Args:
        dataset: something of a length; the samples are its indices.
        shuffle: in another order in every epoch.
        seed: of that order; the same on all ranks.

    Raises:
        NotInitializedError: init() was not called.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        #: Indices of samples of this epoch that are done, as far as this rank knows.
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: nothing of it is done, its order is its own. At the end of an epoch, for the next one."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Batch number `batch_idx` of this rank since the last reset is done."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """These samples are done."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of a batch of this rank; fewer in the last one, none behind it."""
        return self._mine[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and what this rank knows to be done. Not collective."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def gather_state(self) -> dict[str, Any]:
        """As state_dict(), with what is done on all ranks: one checkpoint for any number of ranks. Collective."""
        known = allgather_object(self.processed_indices)
        return {"epoch": self.epoch, "processed_indices": set().union(*known)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what gather_state() gave, the same on all ranks, and divides the rest. Not collective."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Divides what is not done among the ranks there are now; `processed_indices` must be the same on all."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        self.remaining_indices = [i for i in range(len(self.dataset)) if i not in self.processed_indices]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        order = self._order()
        if order:
            order = (order * (self.total_size // len(order) + 1))[: self.total_size]
        self._mine = order[self.rank :: self.num_replicas]

    def _order(self) -> list[int]:
        left = self.remaining_indices
        if not self.shuffle:
            return list(left)
        draw = torch.Generator(device="cpu").manual_seed(self.seed + self.epoch)
        return [left[i] for i in torch.randperm(len(left), generator=draw, dtype=torch.int64, device="cpu").tolist()]

    def __iter__(self) -> Iterator[int]:
        """This rank's samples."""
        return iter(self._mine)

    def __len__(self) -> int:
        """How many they are; the same on all ranks."""
        return self.num_samples


def run(func: Any) -> NoReturn:
    """Not yet there. Raises UnsupportedError that says what to do without."""
    del func
    raise errors.UnsupportedError(f"elastic.run: {_INSTEAD}")


class TorchState:
    """Not yet there. Raises UnsupportedError that says what to do without."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise errors.UnsupportedError(f"elastic.TorchState: {_INSTEAD}")


__all__ = ["ElasticSampler", "TorchState", "run"]
