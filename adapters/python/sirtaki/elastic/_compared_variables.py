"""The variables of a model of Keras and its optimizer that Sirtaki keeps equal on all ranks, and their digests.

These are the trainable variables, and the variables of a DistributedOptimizer whose gradients all ranks combine in each
step. Other variables may differ by right: those of BatchNorm and of random generators, sums of gradients that a rank
has accumulated, the learning rate, and variables whose gradients stay on their rank. Frozen ones look like those of
BatchNorm.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sirtaki import objects
from sirtaki._numpy import Array, numpy_ops
from sirtaki.elastic import _comparison
from sirtaki.elastic._comparison import Comparison
from sirtaki.elastic._divergence import Fingerprint
from sirtaki.ops import URGENT
from sirtaki.process_sets import global_process_set

#: Returns the elements of a variable between two places in row-major order, maybe in its memory.
Reader = Callable[[Any, int, int], Array]


class ComparedVariable:
    """Implements sirtaki.elastic._comparison.Compared.

    Args:
        name: the same on all ranks.
        variable: the variable.
        read: reads a part of a variable, because whole ones may be on a GPU.
    """

    def __init__(self, name: str, variable: Any, read: Reader) -> None:
        self.name = name
        self._variable = variable
        self._read = read
        self._shape, self._dtype = tuple(variable.shape), read(variable, 0, 0).dtype
        self.bytes = math.prod(self._shape) * self._dtype.itemsize

    @property
    def kind(self) -> str:
        """Implements Compared."""
        return f"{self._dtype}{self._shape}"

    def fingerprint(self) -> Fingerprint:
        """Implements Compared. No optimizer: those of Keras have all of their variables before the first commit."""
        values = self.piece(0, self.bytes)
        return Fingerprint("", self.kind, hashlib.sha256(b"" if values is None else values).digest())

    def piece(self, first: int, last: int) -> Any:
        """Implements Compared."""
        if tuple(self._variable.shape) != self._shape:
            return None
        size = self._dtype.itemsize
        begin = first // size
        values = np.ascontiguousarray(self._read(self._variable, begin, -(-last // size)))
        if values.dtype != self._dtype:
            return None
        return values.view(np.uint8)[first - begin * size : last - begin * size]

    def read(self) -> Array:
        """Returns a copy of all bytes."""
        return np.array(self.piece(0, self.bytes))

    def write(self, values: Array) -> None:
        """Implements Compared."""
        self._variable.assign(np.array(values).view(self._dtype).reshape(self._shape))


class KerasTensors:
    """Implements sirtaki.elastic._comparison.Tensors.

    Args:
        state: has the attributes `model` and `optimizer`.
        read: reads a part of a variable.
    """

    def __init__(self, state: Any, read: Reader) -> None:
        self._state = state
        self._read = read

    def is_any(self) -> bool:
        """Implements Tensors."""
        added = getattr(self._state.optimizer, "_sirtaki", None)
        return added is not None and added.config is None and added.choices.process_set == global_process_set

    def find(self) -> list[ComparedVariable]:
        """Implements Tensors."""
        if not self.is_any():
            return []
        model, optimizer = self._state.model, self._state.optimizer
        own, apart = optimizer._sirtaki.own, _of_one_rank(optimizer)
        trained = {id(variable) for one in _parts(optimizer) for variable in getattr(one, "_trainable_variables", ())}
        found = []
        for place, variable in enumerate(model.trainable_variables):
            if id(variable) in trained and variable not in own:
                found.append(ComparedVariable(f"model.trainable_variables[{place}]", variable, self._read))
        for place, variable in enumerate(() if own else optimizer.variables):
            if id(variable) not in apart:
                found.append(ComparedVariable(f"optimizer.variables[{place}]", variable, self._read))
        return found

    def settle(self) -> None:
        """Does nothing: a commit has copied all variables, which waits for their device."""

    def optimizer(self, name: str) -> Any:
        """Implements Tensors. Never called, because no fingerprint names one."""
        raise NotImplementedError(name)


def _of_one_rank(optimizer: Any) -> set[int]:
    """Returns the ids of variables of an optimizer that may differ by right."""
    found = set()
    for one in _parts(optimizer):
        sums = getattr(one, "_accumulated_gradients", ())
        found |= {id(variable) for variable in (*sums, getattr(one, "_learning_rate", None))}
    return found


def _parts(optimizer: Any) -> list[Any]:
    """Returns an optimizer, and the one inside of it if it scales the loss."""
    return [one for one in (optimizer, getattr(optimizer, "inner_optimizer", None)) if one is not None]


class Job(_comparison.Job):
    """The ranks of the job."""

    def rows(self, row: list[int]) -> list[list[int]]:
        """Implements Ranks."""
        sent = np.array([row], np.int64)
        rows: list[list[int]] = numpy_ops.start_one(numpy_ops.allgather(sent, self.ROWS), URGENT).wait().tolist()
        return rows

    def objects(self, value: Any) -> list[Any]:
        """Implements Ranks."""
        return objects.allgather_object(value, self.DIGESTS)

    def broadcast(self, values: Array, root: int) -> Array:
        """Implements Ranks."""
        memory = values if self.rank() == root else np.empty_like(values)
        work = numpy_ops.broadcast(memory, root, self.VALUES, in_place=True)
        result: Array = numpy_ops.start_one(work).wait()
        return result

    def share_optimizer(self, optimizer: Any, root: int) -> None:
        """Implements Ranks. Never called, see KerasTensors.optimizer()."""
        raise NotImplementedError


def comparison_of(state: Any, read: Reader) -> Comparison:
    """Returns the comparison of a state; see KerasTensors for the arguments."""
    return Comparison(KerasTensors(state, read), Job())
