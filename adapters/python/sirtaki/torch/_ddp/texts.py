"""Texts of errors about DistributedDataParallel, with the line that mends each."""

from __future__ import annotations

from collections.abc import Sequence

from sirtaki import basics

#: Error of a second communication hook.
TWO_HOOKS = (
    "the model has a communication hook already, its own or that of an earlier accelerate(), and "
    "DistributedDataParallel takes one: leave out register_comm_hook(), or the second accelerate()"
)
#: Error of an optimizer that combines gradients itself.
DISTRIBUTED_TWICE = (
    "the optimizer is a DistributedOptimizer, and DistributedDataParallel combines the same gradients: give "
    "accelerate() the plain optimizer, or give DistributedOptimizer the plain model"
)
#: Error of an optimizer with parameters of several models, or of momentum correction for several optimizers.
SEVERAL_MODELS = (
    "local updates and momentum correction work on the parameters of one model, and the optimizer has others: make an "
    "optimizer for each model. Momentum correction also needs one optimizer for the whole model"
)
#: Error of a backward after another optimizer or wrapper has taken the parameters.
SUPERSEDED = (
    "another DistributedDataParallel or DistributedOptimizer made later combines the gradients of this model's "
    "parameters: use the one made last, or make one only"
)
#: Error of torch.compile with compiled autograd.
PYTHON_REDUCER = (
    "the Python reducer of DistributedDataParallel (torch._dynamo.config.optimize_ddp = 'python_reducer') passes no "
    "buckets to communication hooks: leave that setting at its default"
)
#: Error of a synchronous step of local updates with gradients of one rank.
NOT_COMBINED = (
    "step() with local updates averages the gradients, and no backward() through the DistributedDataParallel since the "
    "last step has averaged them: leave no_sync() before the last backward() of a step, and call the wrapped model"
)
#: Error of a step that nobody averages, because the program has made the optimizer later.
ANOTHER_OPTIMIZER = (
    "this optimizer has parameters of a model that makes local steps with the optimizers given to accelerate(), so "
    "nobody would average its steps: give it to accelerate() with the others, or call remove() of the handle before "
    "another optimizer steps"
)
#: Error of join() of DistributedDataParallel with local updates.
JOIN_WITH_LOCAL = (
    "join() of DistributedDataParallel together with local updates: ranks merge their models at the same steps, so all "
    "need the same number of them. Give every rank as many batches and leave join() out, or train with local_updates=1"
)


#: Part of a model that a bucket should hold, so that most gradients travel during the backward pass.
_PART_OF_BUCKET = 1 / 8


def one_bucket_text(model_bytes: int) -> str:
    """Returns the hint for a model whose gradients are all in one bucket."""
    cap = model_bytes * _PART_OF_BUCKET / 2**20
    text = f"{cap:.1f}" if cap >= 1 else f"{cap:.1g}"
    return (
        "DistributedDataParallel hands over all gradients of the model in one bucket, so none travels before the end "
        f"of the backward pass: a smaller cap, such as DistributedDataParallel(model, bucket_cap_mb={text}), lets them "
        "start earlier. With torch.compile, a cap must be 1 or more"
    )


def without_optimizer_text(names: Sequence[str]) -> str:
    """Returns the text for parameters that no optimizer has, with local updates."""
    more = "" if len(names) == 1 else f" and {len(names) - 1} more"
    return (
        f"local updates merge the parameters of optimizers, and {names[0]}{more} requires a gradient and is in none: "
        "give accelerate() all optimizers of the model, or freeze the parameter (requires_grad_(False)) before "
        "DistributedDataParallel is made"
    )


def shared_param_text(name: str) -> str:
    """Returns the text for a parameter of several optimizers, with local updates."""
    return f"local updates need one optimizer for each parameter, and two have {name}: make only one of them"


def changed_model_text(names: Sequence[str]) -> str:
    """Returns the text for parameters without a bucket."""
    more = "" if len(names) == 1 else f" and {len(names) - 1} more"
    return (
        f"{names[0]}{more} requires a gradient on rank {basics.rank()} and is in no bucket of DistributedDataParallel, "
        "so nobody combines it: the model was changed after DistributedDataParallel was made. Add, replace and "
        "unfreeze parameters before that call"
    )


def unknown_param_text(shape: Sequence[int]) -> str:
    """Returns the text for a bucket with a parameter that the model does not have."""
    return (
        f"DistributedDataParallel combines a parameter of shape {list(shape)} that the model had when it was wrapped "
        f"and does not have now on rank {basics.rank()}: replace, add and unfreeze parameters before "
        "DistributedDataParallel is made, and call accelerate() directly after that"
    )


def failed_backward_text() -> str:
    """Returns the text for other ranks when a backward has ended before its last bucket."""
    return f"backward() failed on rank {basics.rank()} before all gradients were there"


def late_text(name: str, seconds: float) -> str:
    """Returns the text for a step that is not over in time."""
    return (
        f"the gradients of {name} and the other parameters of the model are not combined after {seconds:g} s: another "
        "rank has not run this backward() yet, or is slow. Every rank must run as many; "
        "init_process_group(timeout=...) gives more time"
    )
