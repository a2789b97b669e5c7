"""horovod.runner.gloo_run: a function that tests replace."""

from __future__ import annotations


def _get_min_start_hosts(settings: object) -> int:
    """Returns 1: a job on several hosts finds the networks of hosts that come later when they come. Never called."""
    del settings
    return 1
