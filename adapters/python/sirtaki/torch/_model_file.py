"""Models and checkpoints in files, for `sirtaki estimate`: names and shapes of parameters, and the time of a step."""

from __future__ import annotations

import runpy
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sirtaki import errors
from sirtaki._estimate.conditions import Compute
from sirtaki._estimate.tensors import Model, of_rows

_WARM_UP, _STEPS = 2, 7
#: Keys under which checkpoints hold a state dict, tried in this order.
_KEYS = ("state_dict", "model_state_dict", "model", "module")


def read(path: Path, measure: bool) -> tuple[Model, Compute | None]:
    """Returns the model of a program or checkpoint and, with `measure`, the time of a step if the program says how.

    Raises:
        InvalidArgumentError: the file holds no model.
    """
    if path.suffix == ".py":
        return _read_program(path, measure)
    try:
        held = torch.load(path, map_location="meta", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise errors.InvalidArgumentError(
            f"{path} is no checkpoint that torch loads without running code from it: {str(error).splitlines()[0]}. "
            "Save model.state_dict(), or give a MODEL.py"
        ) from None
    return _of_state(str(path), held), None


def _read_program(path: Path, measure: bool) -> tuple[Model, Compute | None]:
    if not path.is_file():
        raise errors.InvalidArgumentError(f"there is no file {path}")
    try:
        names = runpy.run_path(str(path), run_name="sirtaki_estimate")
    except (Exception, SystemExit) as error:
        raise errors.InvalidArgumentError(
            f"{path} ended with {type(error).__name__}: {error}. The program is imported, not started as a script: put "
            'the training below `if __name__ == "__main__":`'
        ) from error
    what, model = _find(path, names)
    found = _of_tensors(f"{path}: {what}", {k: v for k, v in model.named_parameters() if v.requires_grad})
    example = names.get("example_input")
    return found, _time(path, model, example, names.get("loss")) if measure and example is not None else None


def _find(path: Path, names: Mapping[str, Any]) -> tuple[str, nn.Module]:
    given = names.get("model")
    if isinstance(given, nn.Module):
        return f"`model`, a {type(given).__name__}", given
    if callable(given):
        made = given()
        if isinstance(made, nn.Module):
            return f"`model()`, a {type(made).__name__}", made
    modules = {name: value for name, value in names.items() if isinstance(value, nn.Module)}
    if len(modules) == 1:
        ((name, value),) = modules.items()
        return f"`{name}`, a {type(value).__name__}", value
    several = f"; it has {', '.join(f'`{name}`' for name in modules)}: name one of them `model`" if modules else ""
    raise errors.InvalidArgumentError(f"{path} defines neither `model` nor a function `model()` of torch{several}")


def _of_state(source: str, held: Any) -> Model:
    what, state = source, held
    for key in _KEYS:
        if isinstance(held, Mapping) and isinstance(held.get(key), Mapping):
            what, state = f"{source}: `{key}`", held[key]
            break
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)} if isinstance(state, Mapping) else {}
    if not tensors:
        raise errors.InvalidArgumentError(f"{source} holds a {type(held).__name__} without a state dict of tensors")
    return _of_tensors(what, tensors)


def _of_tensors(source: str, tensors: Mapping[str, Tensor]) -> Model:
    return of_rows(source, {k: (tuple(v.shape), str(v.dtype).removeprefix("torch.")) for k, v in tensors.items()})


def _time(path: Path, model: nn.Module, example: Any, loss: Any) -> Compute:
    """Returns medians of some steps, and the times at which gradients appear in the last one."""
    params = [param for param in model.parameters() if param.requires_grad]
    if any(param.device.type != "cpu" for param in params):
        raise errors.InvalidArgumentError(f"{path}: only steps on the CPU are timed here; state --compute")
    marks: dict[int, float] = {}

    def mark(i: int) -> None:
        marks[i] = time.perf_counter()

    hooks = [param.register_post_accumulate_grad_hook(lambda _, i=i: mark(i)) for i, param in enumerate(params)]
    wholes, backwards = [], []
    try:
        for _ in range(_WARM_UP + _STEPS):
            marks.clear()
            begin = time.perf_counter()
            _loss(model, example, loss).backward()
            wholes.append(time.perf_counter() - begin)
            backwards.append(max(marks.values()) - min(marks.values()))
            model.zero_grad()
    except Exception as error:
        raise errors.InvalidArgumentError(
            f"{path}: a step with `example_input` ended with {type(error).__name__}: {error}. Correct `example_input` "
            "and `loss`, or state --compute"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    whole, backward = statistics.median(wholes[_WARM_UP:]), statistics.median(backwards[_WARM_UP:])
    first = min(marks.values())
    ready = tuple(min(marks.get(i, first) - first, backward) for i in range(len(params)))
    return Compute(max(whole - backward, 0.0), backward, ready)


def _loss(model: nn.Module, example: Any, loss: Any) -> Tensor:
    if isinstance(example, Mapping):
        output = model(**example)
    else:
        output = model(*example) if isinstance(example, tuple | list) else model(example)
    return loss(output) if callable(loss) else output.float().sum()
