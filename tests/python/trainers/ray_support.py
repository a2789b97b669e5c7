"""Ray on this machine, with places for two workers, for the programs of Ray Train."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray


@contextmanager
def ray_folder() -> Iterator[str]:
    """Starts Ray, and ends it after the context; yields a folder for results."""
    # The path is short because Ray puts its sockets below it.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        memory = 100 * 2**20
        ray.init(num_cpus=3, include_dashboard=False, object_store_memory=memory, _temp_dir=folder, log_to_driver=True)
        try:
            yield folder
        finally:
            ray.shutdown()
