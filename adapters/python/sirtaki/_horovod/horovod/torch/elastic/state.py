"""horovod.torch.elastic.state."""

from sirtaki.torch.elastic.state import (
    ModelStateHandler,
    OptimizerStateHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]
