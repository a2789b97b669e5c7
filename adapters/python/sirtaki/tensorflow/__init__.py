"""Sirtaki for TensorFlow 2.16 to 2.21, with the names of horovod.tensorflow.

import sirtaki.tensorflow as hvd

hvd.init()
with tf.GradientTape() as tape:
    loss = loss_of(model(images), labels)
grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
"""

# isort: off
# First of all: it says what is wrong where there is no TensorFlow.
from sirtaki.tensorflow import _library as _library

# isort: on
from sirtaki import HorovodInternalError, __version__
from sirtaki.basics import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from sirtaki.objects import allgather_object, broadcast_object
from sirtaki.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
from sirtaki.tensorflow import _gradients as _gradients
from sirtaki.tensorflow._absent import explain as _explain
from sirtaki.tensorflow._errors import horovod_errors
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.functions import (
    broadcast_,
    broadcast_variables,
    local_rank_op,
    local_size_op,
    rank_op,
    size_op,
)
from sirtaki.tensorflow.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from sirtaki.tensorflow.optimizer import DistributedOptimizer
from sirtaki.tensorflow.tape import DistributedGradientTape

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "horovod_errors",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]


def __getattr__(name: str) -> object:
    raise AttributeError(_explain(name))
