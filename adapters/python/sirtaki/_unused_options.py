"""Warns, once in a session and on rank 0, of options that only optimizers of Sirtaki read, if there are none.

A program that sends gradients over torch.distributed is warned in its first backward, any other at its end.
"""

from __future__ import annotations

import sys
from contextlib import suppress

from sirtaki import basics
from sirtaki._end_report import failing

#: Options, with their values for "off".
_OPTIONS = {
    "compression.codec": ("none", ""),
    "compression.rules": ("",),
    "local.updates": ("", "off", "none", "1"),
}


class _Warner:
    """Warns once in a session. Used from any thread; two threads at the same time may both warn."""

    def __init__(self) -> None:
        self._warned_generation = 0  # generation of the session

    def warn(self, why: str) -> None:
        """Warns that the chosen options have no effect, and why."""
        if self._warned_generation == basics.first_generation():
            return
        self._warned_generation = basics.first_generation()
        if basics.size() == 1 or basics.rank() != 0:
            return
        rows = {row["name"]: row for row in basics.options()}
        chosen = [name for name, nothing in _OPTIONS.items() if rows[name]["value"] not in nothing]
        if not chosen:
            return
        has = "has" if len(chosen) == 1 else "have"
        listed = " and ".join(f'{name} ("{rows[name]["value"]}")' for name in chosen)
        # A program may have closed standard error.
        with suppress(Exception):
            sys.stderr.write(f"sirtaki: warning: {listed} {has} no effect: {why}\n")
            sys.stderr.flush()

    def options_are_used(self) -> None:
        """Suppresses the warning of a backward in this session."""
        self._warned_generation = basics.first_generation()

    def warn_at_end(self) -> None:
        """Warns before the session ends. Never raises."""
        with suppress(Exception):
            if not failing() and basics.stats().get("streams.steps", 0) == 0:
                self.warn(
                    "the program has made no step with an optimizer of Sirtaki (DistributedOptimizer, "
                    'DistributedGradientTape). For DistributedDataParallel, call init_process_group("sirtaki"), or '
                    "sirtaki.torch.ddp.accelerate(model, optimizer)"
                )


_warner = _Warner()
basics.before_end(_warner.warn_at_end)


def options_are_used() -> None:
    """Records that a DistributedDataParallel of the program follows the options."""
    _warner.options_are_used()


def warn_in_backward() -> None:
    """Warns that gradients are sent over torch.distributed, as by FSDP and by hooks of the program."""
    _warner.warn(
        "torch.distributed sends gradients as FSDP, or a communication hook of the program, passes them. Use "
        "DistributedDataParallel without a hook, or sirtaki.torch.DistributedOptimizer"
    )
