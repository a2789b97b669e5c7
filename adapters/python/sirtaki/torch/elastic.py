"""The part of horovod.torch.elastic that works with a fixed number of ranks: the sampler.

ElasticSampler records the finished samples of an epoch, so that a job that restarts from a checkpoint, with the same or
another number of ranks, continues in the middle of the epoch. run() and TorchState raise an error that names the
alternative.
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
    """Divides the remaining samples of a dataset among the ranks.

    Each sample comes once an epoch; if the number of ranks does not divide the rest, some come twice. Report finished
    samples by record_batch(). load_state_dict() divides the rest again; give it the result of gather_state(), the same
    on all ranks. With the knowledge of one rank alone, ranks would get different numbers of samples, and the next
    collective would not end.

    Args:
        dataset: an object with a length; the samples are its indices.
        shuffle: draws another order in every epoch.
        seed: seed of that order; the same on all ranks.

    Raises:
        NotInitializedError: init() was not called.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        #: Finished samples of this epoch, as far as this rank knows.
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins the epoch with number `epoch`, all samples unfinished. Call it at the end of the one before."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that batch `batch_idx` of this rank since the last reset, of `batch_size` samples, is finished."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """Records that the samples `indices` of the dataset are finished."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Returns the samples of batch `batch_idx` of this rank: `batch_size`, fewer in the last, none after it."""
        return self._mine[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and the finished samples that this rank knows. Not collective."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def gather_state(self) -> dict[str, Any]:
        """Returns state_dict() with the finished samples of all ranks, for any number of ranks. Collective."""
        known = allgather_object(self.processed_indices)
        return {"epoch": self.epoch, "processed_indices": set().union(*known)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict` of gather_state(), the same on all ranks, and divides the rest. Not collective."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Divides the unfinished samples among the current ranks. `processed_indices` must be equal on all ranks."""
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
        """Returns an iterator over the samples of this rank."""
        return iter(self._mine)

    def __len__(self) -> int:
        """Returns the number of samples of this rank; the same on all ranks."""
        return self.num_samples


def run(func: Any) -> NoReturn:
    """Raises UnsupportedError, which names the alternative, for any `func`."""
    del func
    raise errors.UnsupportedError(f"elastic.run: {_INSTEAD}")


class TorchState:
    """Raises UnsupportedError, which names the alternative."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise errors.UnsupportedError(f"elastic.TorchState: {_INSTEAD}")


__all__ = ["ElasticSampler", "TorchState", "run"]
