"""Tensors of a GPU in the backend of torch.distributed, tested with a fake torch.cuda: no test needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from test_gpu_streams import Gpu, PlayedAdapter, gpu  # noqa: E402, F401

from sirtaki import errors  # noqa: E402
from sirtaki.ops import GroupHandle, Handle, Ops, _Pending  # noqa: E402
from sirtaki.torch._cuda import CudaQueue  # noqa: E402
from sirtaki.torch.distributed import convert  # noqa: E402
from sirtaki.torch.distributed.group import SirtakiGroup  # noqa: E402
from sirtaki.torch.distributed.work import Call, SirtakiWork  # noqa: E402

GPU = torch.device("cuda", 0)


@pytest.fixture
def core() -> Iterator[mock.Mock]:
    """A runtime whose operations are over at once."""
    core = mock.Mock()
    core.submit.side_effect = lambda requests: list(range(7, 7 + len(requests)))
    core.poll.return_value = True
    with mock.patch("sirtaki.ops._core", core), mock.patch("sirtaki.ops._in_flight", {}):
        yield core


def group_of_two() -> SirtakiGroup:
    ranks = mock.Mock(ranks=[0, 1])
    ranks.size.return_value, ranks.rank.return_value, ranks.wire.return_value = 2, 0, None
    return SirtakiGroup(Ops(PlayedAdapter(), ranks), "0", timedelta(minutes=1))


def test_a_collective_runs_behind_the_stream_of_the_caller(gpu: Gpu, core: mock.Mock) -> None:  # noqa: F811
    tensor = torch.ones(3)
    work = group_of_two().allreduce([tensor])
    (request,) = core.submit.call_args.args[0]
    assert request[9] == 101
    gpu.current = gpu.two
    assert work.wait()
    assert (gpu.one.waits, gpu.two.waits) == ([], [101])
    gpu.current = gpu.three
    work.synchronize()
    assert gpu.three.waits == [101], "everybody who waits gets outputs that are there"
    assert work.result()[0] is tensor


def test_blocks_on_a_gpu_are_written_to_the_outputs(gpu: Gpu, core: mock.Mock) -> None:  # noqa: F811
    """So they need no copy through the host, and none behind the operation."""
    del gpu
    core.result.return_value = (None, (4,), [2, 2])
    with mock.patch.object(torch.Tensor, "is_cuda", True):
        group, source, output = group_of_two(), torch.ones(4), torch.zeros(8)
        gathered = group.all_gather_single(output, source)
        assert core.submit.call_args.args[0][0][3][0] == output.data_ptr()
        gathered.wait()
        core.result.assert_not_called()

        group.all_gather_single(output, output[:4])
        assert core.submit.call_args.args[0][0][3][0] == output.data_ptr(), "the own block in place"
        group.all_gather_single(output, output[4:])
        assert core.submit.call_args.args[0][0][3][0] != output.data_ptr(), "the block of another rank"

        shared = torch.from_dlpack(output[4:])
        group.all_gather_single(output, shared)
        assert core.submit.call_args.args[0][0][3][0] != output.data_ptr(), "the same memory in another storage"

        options = dist.ScatterOptions()
        options.rootRank = 1
        group.scatter([output], [[]], options)
        assert core.submit.call_args.args[0][0][3][0] == output.data_ptr(), "without a source of its own"

        group.allgather([[torch.zeros(4), torch.zeros(4)]], [source]).wait()
        assert core.submit.call_args.args[0][0][3][4] == (8,), "one piece of memory for all outputs"

        exchanged = torch.zeros(4)
        group.all_to_all_single(exchanged, source, [], []).wait()
        assert core.submit.call_args.args[0][0][3][0] == exchanged.data_ptr()

        group.all_to_all_single(exchanged, exchanged, [], []).wait()
        assert core.submit.call_args.args[0][0][3][0] != exchanged.data_ptr()

        lazy = torch.zeros(4, dtype=torch.complex64).conj()
        core.result.return_value = (None, (4, 2), [2, 2])
        group.all_to_all_single(lazy, torch.ones(4, dtype=torch.complex64), [], []).wait()
        assert core.submit.call_args.args[0][0][3][0] != lazy.data_ptr(), "its memory holds other values"

        core.result.return_value = (None, (0,), [0, 0])
        group.all_to_all_single(torch.zeros(0), source, [0, 0], [4, 0]).wait()
        assert core.submit.call_args.args[0][0][3][0] != 0, "null would make the runtime allocate"


def call_on(gpu: Gpu, made_on: list[int]) -> Call:  # noqa: F811
    pending = _Pending((torch.ones(3),), lambda _request: torch.ones(3))
    pending.queue = CudaQueue(GPU)

    def deliver(results: list[torch.Tensor]) -> list[torch.Tensor]:
        made_on.append(gpu.current.cuda_stream)
        return results

    return Call("all_gather", GroupHandle([Handle(pending)]), deliver, 60)


def test_outputs_are_written_on_the_stream_of_the_call(gpu: Gpu, core: mock.Mock) -> None:  # noqa: F811
    del core
    made_on: list[int] = []
    call = call_on(gpu, made_on)
    gpu.current = gpu.two
    call.finish()
    assert made_on == [101]
    assert (gpu.current, gpu.one.waits, gpu.two.waits) == (gpu.two, [], [101])


def test_a_future_knows_the_gpu_and_ends_on_the_stream_of_the_call(gpu: Gpu, core: mock.Mock) -> None:  # noqa: F811
    del core
    made_on: list[int] = []
    call = call_on(gpu, made_on)
    gpu.current = gpu.two
    with (
        mock.patch("sirtaki.torch.distributed.work.Future") as future,
        mock.patch("sirtaki.torch.distributed.work.pump") as pump,
        mock.patch.object(call, "on_done") as on_done,
    ):
        future().set_result.side_effect = lambda _: made_on.append(gpu.current.cuda_stream)
        SirtakiWork(call).get_future()
        assert future.call_args.kwargs == {"devices": [GPU]}
        on_done.call_args.args[0]()
        pump.remind.assert_called_once()
    assert made_on == [101, 101]


def test_tensors_of_one_call_are_on_one_device() -> None:
    there = mock.Mock(spec=torch.Tensor, device=torch.device("cuda", 1))
    convert.require_memory("all_reduce", [there, there, None])
    with pytest.raises(errors.InvalidArgumentError, match="all_gather on rank 2: tensors are on cuda:1 and cpu"):
        SirtakiGroup._check_sizes(mock.Mock(_rank=2), "all_gather", True, there, torch.ones(3), "exactly")
    with pytest.raises(errors.UnsupportedError, match=r"all_reduce: a tensor is on meta.*CUDA GPUs; copy it with"):
        convert.require_memory("all_reduce", [torch.ones(3, device="meta")])


@pytest.mark.parametrize("backend", ["sirtaki", "cpu:gloo,cuda:sirtaki", "cpu:sirtaki,cuda:nccl"])
def test_one_group_takes_the_tensors_of_both_devices(backend: str) -> None:
    """torch has no backends in Python but whole groups, which take the place of the group for all devices."""
    with (
        mock.patch.object(torch.accelerator, "current_accelerator", return_value=torch.device("cuda")),
        mock.patch.object(torch.accelerator, "device_count", return_value=1),
    ):
        store = dist.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=torch.device("cuda:0"))
    try:
        group = dist.group.WORLD
        assert isinstance(group, SirtakiGroup)
        assert group._device_types == [torch.device("cpu"), torch.device("cuda")]
        assert group._get_backend(GPU) is group
        tensor, objects = torch.ones(3), [None]
        dist.all_reduce(tensor)
        dist.all_gather_object(objects, {"a": 1})
        assert objects == [{"a": 1}]
        assert isinstance(dist.new_group(), SirtakiGroup)
        with pytest.raises(RuntimeError, match="has no tensors on xpu"):
            group._get_backend(torch.device("xpu"))
    finally:
        dist.destroy_process_group()
