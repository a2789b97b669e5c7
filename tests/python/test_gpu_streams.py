"""GPU streams in the adapter for torch, tested with a fake torch.cuda."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import sirtaki.torch as hvd  # noqa: E402
from sirtaki import errors  # noqa: E402
from sirtaki.ops import Handle, Op, Ops, ReduceOp, _Pending  # noqa: E402
from sirtaki.torch import _adapter, _cuda  # noqa: E402
from sirtaki.torch._optimizer.gradient_layout import Layout  # noqa: E402
from sirtaki.torch._optimizer.reducer import GradientReducer  # noqa: E402
from sirtaki.torch._optimizer.step_errors import changed_param_text  # noqa: E402


class PlayedStream:
    """A fake torch.cuda.Stream that records the streams it waits for."""

    def __init__(self, address: int) -> None:
        self.cuda_stream = address
        self.device = torch.device("cuda", 0)
        self.waits: list[int] = []

    def wait_stream(self, other: PlayedStream) -> None:
        """Records that this stream waits for `other`."""
        self.waits.append(other.cuda_stream)


class Gpu:
    """A fake GPU with three streams, one of them current."""

    def __init__(self) -> None:
        self.one, self.two, self.three = PlayedStream(101), PlayedStream(102), PlayedStream(103)
        self.current = self.one


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    played = Gpu()

    @contextmanager
    def using(stream: PlayedStream) -> Iterator[None]:
        before, played.current = played.current, stream
        yield
        played.current = before

    with (
        mock.patch.object(torch.cuda, "current_stream", side_effect=lambda _device: played.current),
        mock.patch.object(torch.cuda, "stream", using),
    ):
        yield played


def test_places() -> None:
    assert _cuda.device_id(torch.device("cpu")) == (0, 0)
    assert _cuda.device_id(torch.device("cuda", 3)) == (1, 3)


def test_what_cannot_be_sent_says_where_it_is() -> None:
    with pytest.raises(errors.UnsupportedError, match="the tensor is on meta"):
        _adapter.check_kind(torch.empty(3, device="meta"))


def test_a_queue_is_followed_by_another_stream_alone(gpu: Gpu) -> None:
    queue = _cuda.CudaQueue(torch.device("cuda", 0))
    assert queue.address == 101
    queue.follow()
    assert gpu.one.waits == []
    gpu.current = gpu.two
    queue.follow()
    assert (gpu.one.waits, gpu.two.waits) == ([], [101])


def test_gradients_say_their_stream_and_results_are_waited_for_on_another(gpu: Gpu) -> None:
    inner = mock.Mock()
    stream = _cuda.CudaStream(inner, torch.device("cuda", 0))
    stream.ready(0, 4096)
    gpu.current = gpu.two
    stream.ready(1, 8192, True)
    inner.ready.assert_has_calls([mock.call(0, 4096, False, 101), mock.call(1, 8192, True, 102)])
    stream.wait_tensors([1])
    assert gpu.two.waits == [101]
    stream.wait()
    assert (gpu.one.waits, gpu.two.waits) == ([], [101, 101])
    stream.wait()
    assert gpu.two.waits == [101, 101], "of steps that are over nothing is left"
    assert stream.used() is inner.used()


def test_torch_gives_unused_memory_back_before_a_stream_opens() -> None:
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    calls = mock.Mock()
    with mock.patch.object(torch.cuda, "empty_cache", calls.empty_cache):
        assert _cuda.open_stream(calls.open, [cpu, cpu]) is calls.open.return_value
        assert calls.mock_calls == [mock.call.open()]
        calls.reset_mock()
        assert isinstance(_cuda.open_stream(calls.open, [cpu, gpu]), _cuda.CudaStream)
        assert calls.mock_calls == [mock.call.empty_cache(), mock.call.open()]


class PlayedAdapter(_adapter.TorchAdapter):
    """An adapter that treats tensors of the CPU as tensors of a GPU."""

    def queue(self, tensor: torch.Tensor) -> _cuda.CudaQueue | None:
        """Returns the queue of the current fake stream."""
        return _cuda.CudaQueue(tensor.device)


def test_an_operation_says_its_stream_and_its_result_is_waited_for_on_another(gpu: Gpu) -> None:
    ops = Ops(PlayedAdapter())
    core = mock.Mock()
    core.submit.side_effect = [[7], [8]]
    with (
        mock.patch("sirtaki.ops._core", core),
        mock.patch.object(type(ops._set), "wire", return_value=None),
        mock.patch("sirtaki.ops._in_flight", {}),
    ):
        tensor = torch.ones(3)
        handle = ops.start_one(ops.allreduce(tensor, "gradient", ReduceOp.SUM, (1.0, 1.0), in_place=True))
        (request,) = core.submit.call_args.args[0]
        assert (request[0], request[1], request[9]) == (int(Op.ALLREDUCE), "gradient", 101)
        gpu.current = gpu.two
        assert handle.wait() is tensor
        assert gpu.two.waits == [101]
        gpu.current = gpu.three
        assert handle.wait() is tensor
        assert gpu.three.waits == [101], "everybody who waits gets a result that is there"
        ops.start_one(ops.barrier()).wait()
        (request,) = core.submit.call_args.args[0]
        assert request[9] == 0


def test_a_reduce_scatter_on_a_gpu_writes_to_memory_of_torch(gpu: Gpu) -> None:
    ops = Ops(PlayedAdapter())
    core = mock.Mock()
    core.submit.return_value = [7]
    members = type(ops._set)
    with (
        mock.patch("sirtaki.ops._core", core),
        mock.patch.object(members, "wire", return_value=None),
        mock.patch.object(members, "size", return_value=2),
        mock.patch.object(members, "rank", return_value=0),
        mock.patch("sirtaki.ops._in_flight", {}),
        mock.patch.object(torch.Tensor, "is_cuda", True),
    ):
        handle = ops.start_one(ops.reducescatter(torch.ones(5, 2), "rows", ReduceOp.SUM, (1.0, 1.0)))
        (request,) = core.submit.call_args.args[0]
        result = handle.wait()
    assert (result.shape, result.data_ptr()) == ((3, 2), request[3][0])
    core.result.assert_not_called()


def test_a_result_is_made_on_the_operations_stream(gpu: Gpu) -> None:
    made_on: list[int] = []
    pending = _Pending((torch.ones(3),), lambda _request: made_on.append(gpu.current.cuda_stream))
    pending.queue = _cuda.CudaQueue(torch.device("cuda", 0))
    gpu.current = gpu.two
    with mock.patch("sirtaki.ops._core", mock.Mock()):
        Handle(pending).wait()
    assert made_on == [101]
    assert (gpu.current, gpu.two.waits) == (gpu.two, [101])


def test_a_future_is_told_of_the_gpu(gpu: Gpu) -> None:
    del gpu
    handle = mock.Mock(spec=Handle, queue=_cuda.CudaQueue(torch.device("cuda", 0)))
    with mock.patch.object(torch.futures, "Future") as future:
        hvd.get_future(handle)
        assert future.call_args.kwargs == {"devices": [torch.device("cuda", 0)]}
        handle.queue = None
        hvd.get_future(handle)
        assert future.call_args.kwargs == {"devices": None}


def test_a_parameter_that_has_moved_is_not_what_was_agreed() -> None:
    param, there = torch.nn.Parameter(torch.ones(3)), torch.device("cuda", 0)
    layout = mock.Mock(shapes=[param.shape], dtypes=[param.dtype], devices=[param.device])
    assert Layout.matches(layout, 0, param)
    layout.devices = [there]
    assert not Layout.matches(layout, 0, param)
    with mock.patch("sirtaki.basics.rank", return_value=2):
        kind = (param.shape, param.dtype)
        text = changed_param_text("weight", (*kind, there), (*kind, param.device))
        assert text.startswith("weight is float32 [3] on cpu on rank 2 and was float32 [3] on cuda:0 in the first step")
        text = changed_param_text("weight", (*kind, there), (torch.Size([4]), param.dtype, there))
        assert text.startswith("weight is float32 [4] on rank 2 and was float32 [3] in the first step")


def test_a_gradient_on_another_gpu_takes_the_way_that_looks_closer() -> None:
    reducer = mock.MagicMock(_submitted=[0], _slots=[0], _sizes=[3], _strides=[(1,)], _dtypes=[torch.float32])
    reducer._devices = [torch.device("cuda", 0)]
    param = mock.Mock()
    reducer.params = [param]
    GradientReducer._hook(reducer, 0)
    (hook,) = param.register_post_accumulate_grad_hook.call_args.args
    grad = mock.Mock(is_sparse=False, dtype=torch.float32, is_cuda=True, device=torch.device("cuda", 1))
    grad.numel.return_value, grad.stride.return_value = 3, (1,)
    grad.is_neg.return_value = grad.is_conj.return_value = False
    hook(mock.Mock(grad=grad))
    reducer._ready.assert_not_called()
    reducer._on_gradient.assert_called_once_with(0)
    grad.device = torch.device("cuda", 0)
    hook(mock.Mock(grad=grad))
    reducer._ready.assert_called_once()
