"""Freshness counts each probe from its production to the read that shows it; a real change becomes visible in a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.cells import Run
from benchmarks.freshness import Bench, Probes, broker, cells, changes, draw, keep, parsed, table, target


def test_probes_are_spread_among_the_changes_and_each_has_an_id_of_its_own() -> None:
    probes = Probes()
    made = list(changes(probes, rate=50.0, seconds=4.0, seed=1))
    assert len(made) == 200
    ids = [json.loads(message.value)["profile_id"] for message in made]
    places = [n for n, one in enumerate(ids) if one.startswith("probe-")]
    assert places == list(range(0, 200, 5))
    assert list(probes.produced) == [ids[n] for n in places]
    assert probes.outstanding() == list(probes.produced)


def test_fewer_changes_than_probes_are_probes_only() -> None:
    probes = Probes()
    assert len(list(changes(probes, rate=2.0, seconds=3.0, seed=1))) == len(probes.produced) == 6


def test_what_was_not_seen_is_counted_and_no_part_of_the_percentiles(tmp_path: Path) -> None:
    rates, kept = cells(Run(tmp_path, {}))
    produced = {f"probe-{n}": float(n) for n in range(101)}
    seen = {one: at + at / 10 for one, at in produced.items() if at < 100}
    found = Probes(produced, seen)
    assert found.outstanding() == ["probe-100"]
    figures = keep(12_000, found, {"changes": 500, "batches": 5, "moves": 1, "read_s": 0.1}, rates, kept)
    assert figures["lost"] == 1
    assert figures["p50_s"] == pytest.approx(4.95)
    assert figures["p95_s"] == pytest.approx(9.405)
    assert figures["first_half_s"] < figures["second_half_s"]
    assert len(kept) == 100
    assert str(target(rates)).endswith("missed.")
    assert list(table(rates).columns[8].cells) == ["100"]
    draw(Run(tmp_path, {}), rates)
    assert (tmp_path / "freshness.png").read_bytes().startswith(b"\x89PNG")


def test_a_rate_at_which_nothing_shows_is_no_figure(tmp_path: Path) -> None:
    rates, kept = cells(Run(tmp_path, {}))
    with pytest.raises(AssertionError, match="no probe showed"):
        keep(600, Probes({"probe-0": 0.0}), {}, rates, kept)
    assert target(rates) is None


@pytest.mark.slow
@pytest.mark.broker
def test_every_probe_of_a_short_run_becomes_visible(spark: SparkSession, tmp_path: Path) -> None:
    with broker(tmp_path) as kafka:
        probes, counted = Bench(spark, tmp_path, kafka, parsed(["--pace", "0", "--moves", "1"])).at(1_200, 4)
    assert probes.outstanding() == []
    assert len(probes.waits()) == 40
    assert counted["changes"] == 80
    assert counted["moves"] > 0, "nothing was moved into the base meanwhile"
    assert min(probes.waits()) > 0
