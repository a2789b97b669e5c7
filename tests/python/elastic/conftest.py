"""Fixtures for tests of elastic states of PyTorch in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def session() -> Iterator[None]:
    """Makes this process the only rank of a job."""
    import sirtaki.torch as hvd

    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def loop(session: None) -> Iterator[None]:
    """Makes this process one of elastic.run()."""
    from sirtaki import basics

    with basics.losses_raise():
        yield
