"""ElasticSampler, which deals the samples of an epoch that are left to the current ranks.

The samples of an epoch have one order on all ranks, and a batch of all ranks takes the next positions of it. So one
number, the same on all ranks, tells which samples are done, those of a lost rank included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from sirtaki import basics, errors


class ElasticSampler(Sampler[int]):
    """Divides the remaining samples of a dataset among the ranks.

    Each sample comes once an epoch; if the number of ranks does not divide the rest, some come twice. Report a finished
    batch by record_batch(), on all ranks after the same step and with batches of one size. load_state_dict() divides
    the rest again, and so does an elastic state when ranks are lost; give it the state of any one rank, the same on
    all.

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
        #: Number of samples of this epoch that all ranks together have finished, from the beginning of its order.
        self.processed_num = 0
        #: Samples that a checkpoint of an earlier version calls finished; they are not in the order.
        self._left_out: frozenset[int] = frozenset()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins the epoch with number `epoch`, all samples unfinished. Call it at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self._left_out = frozenset()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that a batch of every rank is finished. Call it once a batch, in order.

        Args:
            batch_idx: accepted as in Horovod; not used.
            batch_size: number of samples of a rank.
        """
        del batch_idx
        self.processed_num = min(self.processed_num + batch_size * self.num_replicas, len(self._order))
        self._recorded += batch_size

    def record_indices(self, indices: Iterable[int]) -> None:
        """Records that a batch of every rank is finished whose samples are `indices` on this rank: its next ones.

        Raises:
            InvalidArgumentError: other samples come next, so their place does not tell which ones are finished.
        """
        batch = list(indices)
        if batch != self._mine[self._recorded : self._recorded + len(batch)]:
            raise errors.InvalidArgumentError(
                f"record_indices: rank {self.rank} has other samples next than {batch[:4]}; record the batches "
                "in the order in which the sampler gives their samples"
            )
        self.record_batch(0, len(batch))

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """Returns the samples of batch `batch_idx` of this rank: `batch_size`, fewer in the last, none after it."""
        return self._mine[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    @property
    def processed_indices(self) -> set[int]:
        """Finished samples of this epoch, of all ranks."""
        return {*self._left_out, *self._order[: self.processed_num]}

    def state_dict(self) -> dict[str, Any]:
        """Returns the epoch and the place in it, which are the same on all ranks after the same step."""
        state: dict[str, Any] = {"epoch": self.epoch, "processed_num": self.processed_num}
        return state | ({"processed_indices": set(self._left_out)} if self._left_out else {})

    def gather_state(self) -> dict[str, Any]:
        """Returns state_dict(), for programs that call this before a checkpoint."""
        return self.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a `state_dict` of state_dict(), the same on all ranks, and divides the rest. Not collective."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict.get("processed_num", 0)
        self._left_out = frozenset(state_dict.get("processed_indices", ()))
        self.reset()

    def reset(self) -> None:
        """Divides the unfinished samples among the current ranks."""
        self.num_replicas, self.rank = basics.size(), basics.rank()
        self._order = self._drawn_order()
        self.remaining_indices = self._order[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        dealt = self.remaining_indices
        if dealt:
            dealt = (dealt * (self.total_size // len(dealt) + 1))[: self.total_size]
        self._mine = dealt[self.rank :: self.num_replicas]
        self._recorded = 0  # samples of this rank since then

    def _drawn_order(self) -> list[int]:
        order: list[int] = list(range(len(self.dataset)))
        if self.shuffle:
            draw = torch.Generator(device="cpu").manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(order), generator=draw, dtype=torch.int64, device="cpu").tolist()
        return [i for i in order if i not in self._left_out] if self._left_out else order

    def __iter__(self) -> Iterator[int]:
        """Returns an iterator over the samples of this rank."""
        return iter(self._mine)

    def __len__(self) -> int:
        """Returns the number of samples of this rank; the same on all ranks."""
        return self.num_samples
