"""The comparison of a TorchState: its tensors, and their exchange by operations of torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sirtaki.elastic import _comparison
from sirtaki.elastic._comparison import Comparison, Ranks
from sirtaki.ops import URGENT
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch.elastic._compared import Compared, compared_of, is_compared_optimizer
from sirtaki.torch.functions import allgather_object, broadcast_optimizer_state

Values = Callable[[], Mapping[str, Any]]


class Tensors:
    """Implements sirtaki.elastic._comparison.Tensors.

    Args:
        values: returns models, optimizers and other objects of the state, by name.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._gpus: set[torch.device] = set()

    def is_any(self) -> bool:
        """Implements Tensors."""
        return any(map(is_compared_optimizer, self._values().values()))

    def find(self) -> list[Compared]:
        """Implements Tensors."""
        found = compared_of(self._values())
        self._gpus = {one.gpu for one in found if one.gpu is not None}
        return found

    def settle(self) -> None:
        """Waits until GPUs have written the tensors, as a digest would. The time does not depend on the piece."""
        for gpu in self._gpus:
            torch.cuda.current_stream(gpu).synchronize()

    def optimizer(self, name: str) -> Any:
        """Implements Tensors."""
        return self._values()[name]


class Job(_comparison.Job):
    """The ranks of the job."""

    def rows(self, row: list[int]) -> list[list[int]]:
        """Implements Ranks."""
        sent = torch.tensor([row], dtype=torch.int64, device="cpu")
        rows: list[list[int]] = torch_ops.start_one(torch_ops.allgather(sent, self.ROWS), URGENT).wait().tolist()
        return rows

    def objects(self, value: Any) -> list[Any]:
        """Implements Ranks."""
        return allgather_object(value, self.DIGESTS)

    def broadcast(self, values: Tensor, root: int) -> Tensor:
        """Implements Ranks."""
        memory = values if self.rank() == root else torch.empty_like(values)
        work = torch_ops.broadcast(memory, root, self.VALUES, in_place=True)
        result: Tensor = torch_ops.start_one(work).wait()
        return result

    def share_optimizer(self, optimizer: Any, root: int) -> None:
        """Implements Ranks."""
        broadcast_optimizer_state(optimizer, root)


def comparison_of(
    values: Values, ranks: Ranks | None = None, clock: Callable[[], float] = time.perf_counter
) -> Comparison:
    """Returns the comparison of a state.

    Args:
        values: returns models, optimizers and other objects of the state, by name.
        ranks: the exchanges; None: those of the job.
        clock: returns seconds.
    """
    return Comparison(Tensors(values), ranks or Job(), clock)
