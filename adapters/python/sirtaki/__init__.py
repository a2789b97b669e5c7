"""Sirtaki: data-parallel training over slow networks.

The adapters are `sirtaki.torch`, `sirtaki.tensorflow` and `sirtaki.keras`.
"""

from sirtaki import _core
from sirtaki import _unused_options as _unused_options
from sirtaki import process_sets as process_sets
from sirtaki._end_report import session as _session
from sirtaki._telemetry.exporter import exporter as _exporter
from sirtaki._telemetry.metrics import metrics
from sirtaki._telemetry.run_file import writer as _writer
from sirtaki.basics import after_init as _after_init
from sirtaki.basics import before_end as _before_end
from sirtaki.basics import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    members,
    options,
    rank,
    shutdown,
    size,
    start_timeline,
    stats,
    stop_timeline,
)
from sirtaki.basics import on_regroup as _on_regroup
from sirtaki.errors import (
    AbortedError,
    DeadlineError,
    HorovodInternalError,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    NonFiniteError,
    NotInitializedError,
    PeerLostError,
    RanksChangedError,
    SirtakiError,
    StuckError,
    UnavailableError,
    UnsupportedError,
)
from sirtaki.launch import RankFailedError, run
from sirtaki.report import Progress

__version__: str = _core.version()

for _callback in (_session.begin, _writer.begin, _exporter.begin):
    _after_init(_callback)
for _callback in (_exporter.end, _writer.end, _session.end):
    _before_end(_callback)
_on_regroup(_exporter.renew)

__all__ = [
    "AbortedError",
    "DeadlineError",
    "HorovodInternalError",
    "InternalError",
    "InvalidArgumentError",
    "MismatchError",
    "NonFiniteError",
    "NotInitializedError",
    "PeerLostError",
    "Progress",
    "RankFailedError",
    "RanksChangedError",
    "SirtakiError",
    "StuckError",
    "UnavailableError",
    "UnsupportedError",
    "__version__",
    "cross_rank",
    "cross_size",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "members",
    "metrics",
    "options",
    "rank",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]
