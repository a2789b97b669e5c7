"""Cases of the benchmarks that compare systems: names, parameters, and the choice of the cases still to measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import allreduce, netns, overlap, small_tensors, urgent
from benchmarks.common import contest, group, rig
from benchmarks.results import Store

FAKES = Path(__file__).resolve().parent
FAST = "benchmarks_fakes:Fake"


def test_cases_keep_their_names_in_partial_files() -> None:
    assert urgent.Case("200", 4).key == "200/4"
    assert allreduce.Case(rig.LOOPBACK, 2, 4096).key == "loopback/2/4096"
    assert overlap.Case("200", 4, "vgg19", 0.5).key == "200/4/vgg19/0.5"
    assert small_tensors.Case("1000", 2, 161, "random", paced=False).key == "1000/2/161/random/raw"


def test_every_case_tells_network_and_ranks_first() -> None:
    cases = [
        urgent.Case("200", 4),
        allreduce.Case("200", 4, 4096),
        overlap.Case("200", 4, "vgg19", 0.5),
        small_tensors.Case("200", 4, 161, "same", paced=True),
    ]
    for case in cases:
        assert list(case.params.items())[:3] == [("net", "netns"), ("rate_mbit", 200.0), ("ranks", 4)]
        assert len(case.params) > 3
    assert contest.NetCase(rig.LOOPBACK, 2).params == {"net": "loopback", "rate_mbit": None, "ranks": 2}


def test_ranks_that_share_a_host_share_its_link() -> None:
    assert rig.split_net("200") == (200, 0, 1)
    assert rig.split_net("200x2") == (200, 0, 2)
    assert [rig.hosts_of("200x2", size) for size in (1, 2, 3, 4, 8)] == [0, 0, 0, 2, 4]
    assert [rig.hosts_of("200", size) for size in (1, 2, 3)] == [0, 2, 3]
    shared, alone = allreduce.Case("200x2", 4, 1 << 20), allreduce.Case("200", 2, 1 << 20)
    assert shared.key == "200x2/4/1048576"
    assert shared.params == {**alone.params, "ranks": 4, "ranks_per_host": 2}
    assert shared.wire_seconds(1 << 20) == alone.wire_seconds(1 << 20)
    with_all = group.Group(4, [])
    quiet = {"SIRTAKI_REPORT_END": "false"}
    assert with_all._rank_environment(3) == {"RANK": "3", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", **quiet}
    on_two = group.Group(4, [], net=netns.Net(2))
    assert on_two._rank_environment(3) == {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **quiet}
    assert on_two._address(3) == on_two._address(2) == netns.address_of(1)


def test_the_delay_of_links_is_a_parameter_of_their_rows() -> None:
    assert rig.split_net("100d20x2") == (100, 20, 2)
    assert rig.hosts_of("100d20x2", 4) == 2
    near, far = contest.NetCase("100", 4), contest.NetCase("100d20", 4)
    assert far.params == {**near.params, "delay_ms": 20}
    assert far.wire_seconds(1 << 20) == near.wire_seconds(1 << 20)


def test_only_what_the_store_lacks_is_measured_and_each_case_is_kept_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "EXTRA_PYTHONPATH", (str(FAKES),))
    options = rig.Options(True, (rig.LOOPBACK,), (2,), (FAST,), None)
    cases = [allreduce.Case(rig.LOOPBACK, 2, payload) for payload in (4, 8, 12)]
    store = Store("contest", "command", folder=tmp_path)
    store.keep(cases[0].key, {FAST: [1.0]})
    measured: list[int] = []

    def measure(contenders: list[rig.Contender], case: allreduce.Case) -> contest.Samples:
        assert [contender.name for contender in contenders] == [FAST]
        assert contenders[0].group.call("ping") == [0, 1]
        measured.append(case.payload)
        if case.payload == 12:
            raise RuntimeError("the cable was pulled")
        return {FAST: [2.0]}

    with pytest.raises(RuntimeError, match="cable"):
        contest.measure_missing(options, store, cases, measure)
    assert measured == [8, 12]
    again = Store("contest", "command", folder=tmp_path, resume=True)
    assert [again.samples(case.key) for case in cases] == [{FAST: [1.0]}, {FAST: [2.0]}, None]


def test_a_ratio_names_the_system_that_counts_as_one() -> None:
    row = contest.ratio_row("speedup", {}, [4.0, 4.2], [2.0, 2.1], "gloo", target=1.5)
    assert (row.value, row.baseline, row.met) == (pytest.approx(2.0), {"name": "gloo", "value": 1.0}, True)
