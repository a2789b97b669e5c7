"""Converts failures of operations to exceptions of sirtaki.errors."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from sirtaki import errors

#: Payload key; adapters/tensorflow/status.cc writes code;rank;tensor, and the text on further lines.
_PAYLOAD = b"sirtaki"


#: Classes of TensorFlow, as in adapters/tensorflow/status.cc; AbortedError for all others.
_TENSORFLOW_CLASSES: dict[type[errors.SirtakiError], type[tf.errors.OpError]] = {
    errors.InvalidArgumentError: tf.errors.InvalidArgumentError,
    errors.MismatchError: tf.errors.FailedPreconditionError,
    errors.NotInitializedError: tf.errors.FailedPreconditionError,
    errors.UnsupportedError: tf.errors.UnimplementedError,
}


@functools.cache
def _class_of(ours: type[errors.SirtakiError]) -> type[errors.SirtakiError]:
    theirs = _TENSORFLOW_CLASSES.get(ours, tf.errors.AbortedError)

    def begin(self: Any, text: str, rank: int | None, tensor: str | None) -> None:
        theirs.__init__(self, None, None, text)
        ours.__init__(self, text, rank, tensor)

    def reduce(self: Any) -> Any:
        return _make, (ours, *self.args, self.rank, self.tensor)

    kept = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
    return type(ours.__name__, (ours, theirs), {**kept, "__init__": begin, "__reduce__": reduce})


def _make(ours: type[errors.SirtakiError], text: str, rank: int | None, tensor: str | None) -> errors.SirtakiError:
    return _class_of(ours)(text, rank, tensor)  # type: ignore[arg-type]


def with_tensorflow_type(error: errors.SirtakiError) -> errors.SirtakiError:
    """Returns the error as an instance of a class of tf.errors, too: programs for Horovod catch those."""
    if isinstance(error, tf.errors.OpError):
        return error
    return _make(type(error), str(error), error.rank, error.tensor)


def to_sirtaki_error(error: tf.errors.OpError) -> BaseException:
    """Returns the exception of sirtaki.errors, and of tf.errors, for an error of TensorFlow; other errors unchanged.

    A MismatchError is a tf.errors.FailedPreconditionError, as Horovod raises for ranks that disagree.
    """
    payload = None if isinstance(error, errors.SirtakiError) else error.experimental_payloads.get(_PAYLOAD)
    if payload is None:
        return error
    blame, text = payload.decode().split("\n", 1)
    code, rank, tensor = blame.split(";", 2)
    return with_tensorflow_type(errors.make_error(int(code), text, int(rank), tensor))


class _Noted:
    #: The last error of a function that was being traced, or of Python in a graph: TensorFlow keeps only the text.
    #: Without its traceback, which has tensors; horovod_errors() forgets what a program has caught.
    error: errors.SirtakiError | None = None


def _note(error: errors.SirtakiError) -> None:
    _Noted.error = copy.copy(error)


@contextmanager
def noting_error() -> Iterator[None]:
    """Returns a context for Python in a graph, whose errors horovod_errors() finds again."""
    try:
        yield
    except errors.SirtakiError as error:
        _note(error)
        raise


def _noted(error: BaseException) -> errors.SirtakiError | None:
    """Returns the error of which `error` has the text."""
    noted = _Noted.error
    return None if noted is None or str(noted) not in str(error) else with_tensorflow_type(noted)


def to_builtin_error(error: errors.SirtakiError) -> Exception:
    """Returns the error as a built-in exception: AutoGraph converts any other class to a StagingError."""
    _note(error)
    for kind in (ValueError, NotImplementedError, RuntimeError):
        if isinstance(error, kind):
            return kind(str(error))
    return error


@contextmanager
def horovod_errors() -> Iterator[None]:
    """Returns a context in which operations of a tf.function raise exceptions of sirtaki.errors, as in eager code.

    A tf.function raises exceptions of TensorFlow: FailedPreconditionError if ranks disagree, AbortedError for other
    failures that concern several ranks. In eager code an exception belongs to both hierarchies.

        with hvd.horovod_errors():
            train_step(images, labels)

    Raises:
        HorovodInternalError: an operation failed on several ranks.
        ValueError: arguments of an operation are wrong.
    """
    _Noted.error = None
    try:
        yield
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        if isinstance(error, errors.SirtakiError):
            raise
        converted = to_sirtaki_error(error) if isinstance(error, tf.errors.OpError) else error
        if converted is error:
            noted = _noted(error)
            if noted is None:
                raise
            converted = noted
        raise converted from error
    finally:
        _Noted.error = None
