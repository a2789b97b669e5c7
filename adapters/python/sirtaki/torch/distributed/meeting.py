"""Opens the session of process groups, and gives ranks that sirtakirun started a store for torch."""

from __future__ import annotations

import fcntl
import ipaddress
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed
from torch.distributed import TCPStore
from torch.distributed.constants import default_pg_timeout

from sirtaki import _torchrun, basics, errors
from sirtaki.process_sets import ProcessSet
from sirtaki.torch._adapter import torch_ops
from sirtaki.torch.distributed.group import SirtakiGroup
from sirtaki.torch.functions import broadcast_object
from sirtaki_backend.own_port import has_own_port

_GLOO = 'torch.distributed.new_group(ranks, backend="gloo")'
_LONGEST_STALL = 8760 * 3600  # largest value of control.stall_fail, in seconds
_JOB = ("SIRTAKI_JOB_RANK", "SIRTAKI_JOB_RENDEZVOUS")
# <linux/sockios.h> and struct ifreq: the address lies behind the name, the family and the port.
_SIOCGIFADDR = 0x8915
_IFREQ_BYTES = 40
_ADDRESS_BYTES = slice(20, 24)


class _SessionOwner:
    """Opens the session for process groups, and shuts it down with the last of them."""

    def __init__(self) -> None:
        self.opened = 0
        self.groups: set[str] = set()

    def open(self, job: _torchrun.Job | None, options: Mapping[str, object]) -> None:
        if job is None:
            basics.init(options=options)
        else:
            basics.open_session(job, options)
        self.opened = basics.generation()
        if basics.is_elastic() and basics.rank() == 0:
            print(
                "sirtaki: the job is elastic (elastic.min), but programs of torch.distributed end with the first lost "
                "rank: torch's groups keep their ranks. docs/elastic.md shows loops that go on",
                file=sys.stderr,
            )

    def add(self, group: SirtakiGroup, name: str) -> None:
        self.groups.add(name)
        group.call_at_shutdown(lambda: self.remove(name))

    def remove(self, name: str) -> None:
        self.groups.discard(name)
        if not self.groups and self.opened == basics.generation():
            basics.shutdown()


_session_owner = _SessionOwner()


def create_group(options: Any, backend_options: object) -> SirtakiGroup:
    """Makes a process group; called by torch for every group with this backend.

    Raises:
        ValueError: torch and the session know different ranks or sizes.
        UnsupportedError: the ranks are not in ascending order, the first group has only some ranks, or there are
            options for the backend.
        HorovodInternalError: the ranks cannot meet.
    """
    ranks, size = list(options.global_ranks_in_group), options.group_size
    if backend_options is not None:
        raise errors.UnsupportedError("backend sirtaki takes no pg_options; options are in docs/options.md")
    if not basics.is_initialized():
        if ranks and len(ranks) < distributed.get_world_size():
            raise errors.UnsupportedError(
                f"new_group({ranks}): all ranks meet in the first group with backend sirtaki. Make one of all "
                'before it: torch.distributed.new_group(backend="sirtaki")'
            )
        _open(options)
    if ranks != sorted(ranks):
        raise errors.UnsupportedError(
            f"new_group({ranks}): backend sirtaki has groups of ranks in ascending order. Use Gloo for this one: "
            f"{_GLOO}"
        )
    ops = torch_ops.within(ProcessSet(ranks or None))
    _check_place((options.group_rank, size), (ops.rank(), ops.size()))
    group = SirtakiGroup(ops, options.group_id, options.timeout)
    _session_owner.add(group, options.group_id)
    return group


def rendezvous(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[tuple[TCPStore, int, int]]:
    """Serves init_method sirtaki://: the ranks meet as their launcher says, then make a store for torch.

    Yields:
        The store, the rank and the number of ranks; once.
    """
    del url
    if not basics.is_initialized():
        _session_owner.open(None, _stall_options(timeout))
    lead_gloo()
    rank, size = basics.rank(), basics.size()
    if rank == 0:
        store = TCPStore("localhost", 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        broadcast_object((_address(), store.port), 0, "torch.store")
    else:
        host, port = broadcast_object(None, 0, "torch.store")
        store = TCPStore(host, port, size, is_master=False, timeout=timeout, wait_for_workers=False)
    yield store, rank, size
    raise RuntimeError("ranks of Sirtaki meet once for each init_process_group()")


def _stall_options(timeout: timedelta) -> dict[str, object]:
    """Returns options that keep the runtime from ending an operation before the timeout of the group."""
    rows = {row["name"]: row for row in basics.options()}
    if timeout <= default_pg_timeout or rows["control.stall_fail"]["source"] != "default":
        return {}
    return {"control.stall_fail": f"{min(round(timeout.total_seconds()), _LONGEST_STALL)}s"}


def _open(options: Any) -> None:
    limits = _stall_options(options.timeout)
    if _in_job():
        _session_owner.open(None, limits)
        return
    key = _torchrun.store_key()
    job = _torchrun.meet_in(options.store, key, options.group_rank, options.group_size, _master(options.store))
    _session_owner.open(job, limits)


def _in_job() -> bool:
    """Returns true in a rank of a launcher, and false in a process that such a rank has started for other groups.

    That process has the variables of the rank, too. If it stands in for the rank, env:// has opened the session. A
    rank that names a port of its own counts as such a process: nothing tells them apart.
    """
    is_child = multiprocessing.parent_process() is not None or "TORCHELASTIC_RUN_ID" in os.environ
    return any(name in os.environ for name in _JOB) and not is_child and not has_own_port()


def join_default_group() -> None:
    """Opens a session among the ranks of torch's default group, of any backend, unless there is one. Collective.

    Raises:
        InvalidArgumentError: torch and the session know different ranks or sizes.
        HorovodInternalError: the ranks cannot meet.
    """
    rank, size = distributed.get_rank(), distributed.get_world_size()
    if not basics.is_initialized():
        store = distributed.distributed_c10d._get_default_store()
        if store is None or _in_job():
            basics.init()
        else:
            # A store keeps old values, and a program may open several sessions.
            key = f"{_torchrun.store_key()}/session/{basics.generation()}"
            basics.open_session(_torchrun.meet_in(store, key, rank, size, _master(store)), {})
    _check_place((rank, size), (basics.rank(), basics.size()))


def _check_place(told: tuple[int, int], here: tuple[int, int]) -> None:
    if told != here:
        raise errors.InvalidArgumentError(
            f"torch.distributed was told that this is rank {told[0]} of {told[1]}, and Sirtaki that it is rank "
            f"{here[0]} of {here[1]}. Give init_process_group() neither rank nor world_size, or the same as the "
            "launcher; start the job with one launcher"
        )


def _master(store: Any) -> str:
    """Returns the address at which the others reach the host of rank 0, which serves a store over TCP."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return os.environ.get("MASTER_ADDR") or getattr(store, "host", "") or "127.0.0.1"


def lead_gloo() -> None:
    """Gives Gloo the interface that leads to the other hosts, if it would take the loopback and the user names none.

    Gloo takes the address of the host name, which is 127.0.1.1 on a machine that Debian's installer set up, or the
    loopback where the name has no address.
    """
    if basics.cross_size() == 1 or "GLOO_SOCKET_IFNAME" in os.environ or not _name_leads_to_loopback():
        return
    # Without a route, the address is a name; /proc may be out of reach.
    with suppress(ValueError, OSError):
        interface = interface_of(_address())
        if interface not in (None, "lo"):
            os.environ["GLOO_SOCKET_IFNAME"] = str(interface)


def _name_leads_to_loopback() -> bool:
    """Returns True if the name of this host has a loopback address as its first one, or none."""
    with suppress(OSError, ValueError):
        return ipaddress.ip_address(socket.getaddrinfo(socket.gethostname(), None)[0][4][0]).is_loopback
    return True


def interface_of(address: str) -> str | None:
    """Returns the name of the interface that has an address as its first one; None if there is none."""
    wanted = ipaddress.ip_address(address)
    if wanted.version == 6:
        lines = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
        return next((words[-1] for words in lines if int(words[0], 16) == int(wanted)), None)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            # An interface without an address is an error.
            with suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, name.encode().ljust(_IFREQ_BYTES, b"\0"))
                if answer[_ADDRESS_BYTES] == wanted.packed:
                    return name
    return None


def _address() -> str:
    """Returns the address at which other ranks reach this host: that of its route to the coordinator."""
    if basics.cross_size() == 1:
        return "127.0.0.1"
    host, _, port = os.environ.get("SIRTAKI_JOB_RENDEZVOUS", "").rpartition(":")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        # connect() of a datagram socket sends nothing; it only selects the route.
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            found: str = probe.getsockname()[0]
            return found
    except (OSError, ValueError):
        return socket.gethostname()
