"""Sirtaki for TensorFlow 2.16 to 2.21, with the names of horovod.tensorflow.

```python
import sirtaki.tensorflow as hvd

hvd.init()
with tf.GradientTape() as tape:
    loss = loss_of(model(images), labels)
grads = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
```
"""

import importlib

# isort: off
# Imported first: the module explains a missing TensorFlow.
from sirtaki.tensorflow import _library as _library

# isort: on
from sirtaki import HorovodInternalError, __version__
from sirtaki import basics as _basics
from sirtaki import process_sets as _process_sets
from sirtaki._unsupported import missing_attribute as _missing_attribute
from sirtaki.basics import *  # noqa: F403
from sirtaki.process_sets import *  # noqa: F403
from sirtaki.tensorflow import _op_gradients as _op_gradients
from sirtaki.tensorflow import functions as _functions
from sirtaki.tensorflow import ops as _ops
from sirtaki.tensorflow import util
from sirtaki.tensorflow._errors import horovod_errors
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.functions import *  # noqa: F403
from sirtaki.tensorflow.ops import *  # noqa: F403
from sirtaki.tensorflow.optimizer import DistributedOptimizer
from sirtaki.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from sirtaki.tensorflow.util import _cache as _cache
from sirtaki.tensorflow.util import _executing_eagerly as _executing_eagerly
from sirtaki.tensorflow.util import _make_subgraph as _make_subgraph
from sirtaki.tensorflow.util import refs_to_vars, vars_to_refs

__all__ = [
    "Compression",
    "Compressor",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "PartialDistributedGradientTape",
    "__version__",
    "horovod_errors",
    "refs_to_vars",
    "util",
    "vars_to_refs",
]
__all__ += _basics.__all__
__all__ += _process_sets.__all__
__all__ += _functions.__all__
__all__ += _ops.__all__


def __getattr__(name: str) -> object:
    if name == "SyncBatchNormalization":  # imports Keras, which programs without Keras must not pay for
        from sirtaki.keras.sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    if name == "elastic":
        return importlib.import_module("sirtaki.tensorflow.elastic")
    raise _missing_attribute(__name__, name)
