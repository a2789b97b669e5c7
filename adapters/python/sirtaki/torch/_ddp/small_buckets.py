"""Small buckets for a DistributedDataParallel, so that transfers begin before the end of backward.

Its default of 25 MB holds a whole small model, which then waits for its last gradient. The stream of the runtime needs
no large buckets: it divides and joins gradients by its own plan.
"""

from __future__ import annotations

import dataclasses
from typing import Any

#: Parts of a model that buckets hold, and fewest bytes of one: the hook takes some 50 microseconds for each bucket.
_MOST_BUCKETS = 32
_LEAST_BYTES = 64 * 1024


def make_small_buckets(wrapper: Any) -> None:
    """Makes the buckets small, unless the program has chosen their size. Call it before a backward, without a hook.

    Parameters and process group stay as they are. Attributes that other libraries read keep their values:
    torch.compile divides graphs by `bucket_bytes_cap`.
    """
    if not _has_default_buckets(wrapper):
        return
    parameters, sparse = wrapper._build_params_for_reducer()
    total = sum(p.numel() * p.element_size() for p in parameters)
    cap = max(total // _MOST_BUCKETS, _LEAST_BYTES)
    if cap >= wrapper.bucket_bytes_cap:
        return  # a model of 800 MB has as many buckets anyway
    before = {name: vars(wrapper).get(name) for name in ("bucket_bytes_cap", "bucket_bytes_cap_default")}
    config = vars(wrapper).get("_bucket_config")  # of torch 2.13 and later
    wrapper.bucket_bytes_cap, wrapper.bucket_bytes_cap_default = cap, False
    if config is not None:
        wrapper._bucket_config = dataclasses.replace(config, bucket_bytes_cap=cap, first_bucket_bytes_cap=cap)
    try:
        # Replaces the reducer as unpickling does; the old one takes its hooks along.
        names = wrapper._build_debug_param_to_name_mapping(parameters)
        static = bool(getattr(wrapper, "static_graph", False))
        wrapper._ddp_init_helper(parameters, sparse, names, static)
        if static:
            wrapper.reducer._set_static_graph()
            wrapper.logger._set_static_graph()
    finally:
        vars(wrapper).update(before)
        if config is not None:
            wrapper._bucket_config = config


def _has_default_buckets(wrapper: Any) -> bool:
    others = wrapper._delay_all_reduce_params or wrapper._use_python_reducer
    return bool(getattr(wrapper, "bucket_bytes_cap_default", False)) and not others
