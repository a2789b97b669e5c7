"""Names, arithmetic and error texts of the namespace tool; nothing here needs root."""

from __future__ import annotations

import os
import subprocess

import pytest

from benchmarks import netns
from benchmarks.network import netns_cli


def test_names_are_unique_and_tell_their_owner() -> None:
    first, second = netns.make_net_id(), netns.make_net_id()
    assert first != second
    name = netns.namespace_of(first, 3)
    parsed = netns.parse_net_id(name)
    assert parsed is not None
    assert parsed[:2] == (first, os.getpid())
    assert netns.parse_net_id(netns.namespace_of(first, netns.LAUNCHER)) == parsed


@pytest.mark.parametrize("name", ["srt", "docker-1-2-3-r0", "srt-x-1a-ffffff-r0", "srt-12-zz-ffffff-r0", "srt-1-2-3"])
def test_names_of_others_are_not_ours(name: str) -> None:
    assert netns.parse_net_id(name) is None
    assert netns.owner_is_alive(name), "gc must leave it alone"


def test_an_owner_that_lives_keeps_its_network() -> None:
    assert netns.owner_is_alive(netns.namespace_of(netns.make_net_id(), 0))


def test_an_owner_that_is_gone_loses_its_network() -> None:
    child = subprocess.Popen(["sleep", "30"])
    name = netns.namespace_of(netns.make_net_id(child.pid), 0)
    assert netns.owner_is_alive(name)
    child.kill()
    child.wait()
    assert not netns.owner_is_alive(name)


def test_a_reused_pid_is_another_owner() -> None:
    parts = netns.make_net_id().split("-")
    parts[2] = f"{int(parts[2], 16) + 1:x}"
    assert not netns.owner_is_alive("-".join(parts) + "-r0")


def test_addresses_of_nodes_and_launcher_differ() -> None:
    nodes: list[int | str] = [netns.LAUNCHER, *range(200)]
    assert len({netns.address_of(node) for node in nodes}) == 201


def test_payload_rate_and_queue_follow_from_the_rate() -> None:
    link = netns.LinkSpec(rate_mbit=200)
    assert link.payload_bytes_per_second == pytest.approx(23.91e6, rel=1e-3)
    assert link.limit_bytes >= 4 * netns.BURST_BYTES
    assert netns.LinkSpec(rate_mbit=1000).limit_bytes == 3_750_000
    assert netns.LinkSpec().payload_bytes_per_second is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_mbit": 0},
        {"rate_mbit": -1},
        {"burst_bytes": 1500},
        {"drop_share": 1.0},
        {"drop_share": -0.1},
        {"delay_ms": -1},
    ],
)
def test_a_link_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(netns.NetnsError):
        netns.LinkSpec(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("nodes", [0, 201])
def test_a_number_of_nodes_that_cannot_be_is_refused(nodes: int) -> None:
    with pytest.raises(netns.NetnsError, match="nodes"):
        netns.Net(nodes)


@pytest.mark.parametrize("variable", netns.RANK_VARIABLES)
def test_the_namespace_is_found_by_rank(variable: str) -> None:
    environ = {netns.ENV_NET: "srt-1-2-abc", variable: "3"}
    assert netns.namespace_from_environment(environ) == "srt-1-2-abc-r3"
    assert netns.namespace_from_environment(environ, ranks_per_node=2) == "srt-1-2-abc-r1"


def test_without_a_network_or_a_rank_the_error_says_so() -> None:
    with pytest.raises(netns.NetnsError, match=netns.ENV_NET):
        netns.namespace_from_environment({"RANK": "0"})
    with pytest.raises(netns.NetnsError, match="no rank"):
        netns.namespace_from_environment({netns.ENV_NET: "srt-1-2-abc"})


def test_without_root_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = netns.unavailable_reason()
    assert reason is not None
    assert "root" in reason
    with pytest.raises(netns.NetnsError, match="root"):
        netns.Net(2).__enter__()


def test_a_missing_command_is_an_error_not_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert netns_cli.main(["exec", "--ns", "srt-none"]) == 2
    assert "no command" in capsys.readouterr().err


def test_an_unknown_namespace_is_an_error_not_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert netns_cli.main(["exec", "--ns", "srt-none", "--", "true"]) == 2
    assert "srt-none" in capsys.readouterr().err
