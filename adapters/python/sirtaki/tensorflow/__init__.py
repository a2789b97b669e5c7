"""Sirtaki for TensorFlow 2.16 to 2.21, with the names of horovod.tensorflow.

import sirtaki.tensorflow as hvd

hvd.init()
with tf.GradientTape() as tape:
    loss = loss_of(model(images), labels)
grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
"""

import importlib

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
from sirtaki.process_sets import (
    ProcessSet,
    add_process_set,
    get_process_set_ids_and_ranks,
    global_process_set,
    remove_process_set,
)
from sirtaki.tensorflow import _op_gradients as _op_gradients
from sirtaki.tensorflow import util
from sirtaki.tensorflow._errors import horovod_errors
from sirtaki.tensorflow._unsupported import explain as _explain
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.functions import (
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
    local_rank_op,
    local_size_op,
    process_set_included_op,
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
from sirtaki.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from sirtaki.tensorflow.util import _cache as _cache
from sirtaki.tensorflow.util import _executing_eagerly as _executing_eagerly
from sirtaki.tensorflow.util import _make_subgraph as _make_subgraph
from sirtaki.tensorflow.util import refs_to_vars, vars_to_refs

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
    "PartialDistributedGradientTape",
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
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
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
    "process_set_included_op",
    "rank",
    "rank_op",
    "reducescatter",
    "refs_to_vars",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "util",
    "vars_to_refs",
]


def __getattr__(name: str) -> object:
    if name == "SyncBatchNormalization":  # with Keras, which programs of TensorFlow alone do not import
        from sirtaki.keras.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    if name == "elastic":
        return importlib.import_module("sirtaki.tensorflow.elastic")
    raise AttributeError(_explain(name))
