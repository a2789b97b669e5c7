"""Failures of operations as exceptions of sirtaki.errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from sirtaki import errors

#: Written by adapters/tensorflow/status.cc: code;rank;tensor, and the text on further lines.
_PAYLOAD = b"sirtaki"


def translated(error: tf.errors.OpError) -> BaseException:
    """The exception of sirtaki.errors behind one of TensorFlow's; itself where there is none."""
    payload = error.experimental_payloads.get(_PAYLOAD)
    if payload is None:
        return error
    blame, text = payload.decode().split("\n", 1)
    code, rank, tensor = blame.split(";", 2)
    return errors.make_error(int(code), text, int(rank), tensor)


def plain(error: errors.SirtakiError) -> Exception:
    """The same as one of Python's own: AutoGraph makes a StagingError of any other, which nobody catches."""
    for kind in (ValueError, NotImplementedError, RuntimeError):
        if isinstance(error, kind):
            return kind(str(error))
    return error


@contextmanager
def horovod_errors() -> Iterator[None]:
    """Inside it, what an operation of a tf.function raises is an exception of sirtaki.errors, as it is in eager code.

    A tf.function raises TensorFlow's own exceptions: AbortedError for what concerns several ranks.

        with hvd.horovod_errors():
            train_step(images, labels)

    Raises:
        HorovodInternalError: an operation failed on several ranks.
        ValueError: arguments of an operation are wrong.
    """
    try:
        yield
    except tf.errors.OpError as error:
        told = translated(error)
        if told is error:
            raise
        raise told from error
