"""Sirtaki for Keras 3 on TensorFlow and on torch, with the names of horovod.keras and horovod.tensorflow.keras.

```python
import sirtaki.keras as hvd

hvd.init()
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size())), loss=...)
model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
```
"""

# isort: off
# Imported first: the module explains a missing Keras.
from sirtaki.keras import _backend as _backend

# isort: on
from sirtaki import HorovodInternalError, __version__
from sirtaki import basics as _basics
from sirtaki import process_sets as _process_sets
from sirtaki.basics import *  # noqa: F403
from sirtaki.keras import callbacks, elastic
from sirtaki.keras import functions as _functions
from sirtaki.keras._compression import Compression, Compressor
from sirtaki.keras.functions import *  # noqa: F403
from sirtaki.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from sirtaki.local_updates import LocalUpdates, Outer
from sirtaki.objects import allgather_object, broadcast_object
from sirtaki.process_sets import *  # noqa: F403

__all__ = [
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "HorovodInternalError",
    "LocalUpdates",
    "Outer",
    "PartialDistributedOptimizer",
    "__version__",
    "allgather_object",
    "broadcast_object",
    "callbacks",
    "elastic",
]
__all__ += _basics.__all__
__all__ += _process_sets.__all__
__all__ += _functions.__all__
