"""An erasure as a run of Dagster: whom it is about is in a file that is gone afterwards, and nowhere in its storage."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import dagster as dg
import pytest

from engagement_platform.defs.platform import Platform
from engagement_platform.engine.job import Callbacks
from engagement_platform.erasing import erase as erasures
from engagement_platform.erasing.erase import Done, Request
from engagement_platform.errors import PlatformError
from engagement_platform_tests.defs.conftest import loaded
from engagement_platform_tests.erasing.planted import BOB, DATA, Planted
from engagement_platform_tests.erasing.test_erasing import REF, WHOM, dying_at
from engagement_platform_tests.files_with import places_with


@pytest.mark.parametrize(
    "text",
    [
        '{"subject": "4711", "persons": "4711"}',
        '{"subject": "4711", "subject": "4712"}',
        '{"subject": "4711", "4711": true}',
        '{"subject": 4711}',
        '{"subject": "4711", "now": "yes"}',
        '{"persons": ["4711"]}',
        '["4711"]',
        "4711",
    ],
)
def test_a_request_that_is_not_clear_is_refused_with_nothing_of_it_in_any_error(text: str, tmp_path: Path) -> None:
    """Dagster keeps an error with those that it came from."""
    request = tmp_path / "request.json"
    request.write_text(text)
    with pytest.raises(PlatformError, match="Nothing was erased") as refused:
        Request.read(request)
    assert "4711" not in "".join(traceback.format_exception(refused.value)).replace(str(tmp_path), "")


def test_a_clear_request_is_read_as_it_is_written(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(
        '{"subject": "4711", "game": "chess", "organizations": ["org"], "persons": ["j\\u00f6rg"], "now": true}'
    )
    assert Request.read(request) == Request("4711", "chess", ["j\u00f6rg"], ["org"], now=True)


def test_a_refused_request_stays_and_its_ids_are_nowhere_in_dagster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    request, receipt, kept = tmp_path / "request.json", tmp_path / "receipt.json", tmp_path / "dagster"
    kept.mkdir()
    request.write_text('{"subject": "4711", "4711": true}')
    config = {"ops": {"erase": {"config": {"request": str(request), "receipt": str(receipt)}}}}
    with dg.instance_for_test(temp_dir=str(kept)) as instance:
        job = loaded().resolve_job_def("erase_subjects")
        result = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
        [event] = [event for event in result.all_events if event.is_step_failure]
        assert "Nothing was erased" in str(event.step_failure_data.error)
    assert places_with([kept], [b"4711"]) == []
    assert request.exists()
    assert not receipt.exists()


def test_a_run_that_ends_before_its_request_is_gone_writes_the_receipt_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    calls = iter(range(1, 3))
    monkeypatch.setattr(erasures, "erase", lambda *_: Done({"call": next(calls)}, 0, [], []))
    monkeypatch.setattr(erasures, "near_ids", lambda *_: [])
    request, receipt, unlink = tmp_path / "request.json", tmp_path / "receipt.json", Path.unlink
    request.write_text('{"subject": "4711"}')
    config = {"ops": {"erase": {"config": {"request": str(request), "receipt": str(receipt)}}}}

    def dies(path: Path, missing_ok: bool = False) -> None:
        if path == request:
            raise OSError("the process ends here")
        unlink(path, missing_ok)

    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        job = loaded().resolve_job_def("erase_subjects")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", dies)
            assert not job.execute_in_process(run_config=config, instance=instance, raise_on_error=False).success
        assert (request.exists(), json.loads(receipt.read_text())) == (True, {"call": 1})
        assert job.execute_in_process(run_config=config, instance=instance).success
    assert (request.exists(), json.loads(receipt.read_text())) == (False, {"call": 2})


def test_a_receipt_that_cannot_be_written_is_in_the_failure_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(erasures, "erase", lambda *_: Done({"signed": "receipt"}, 0, [], []))
    monkeypatch.setattr(erasures, "near_ids", lambda *_: [])
    request, receipt = tmp_path / "request.json", tmp_path / "receipt.json"
    request.write_text('{"subject": "4711"}')
    receipt.mkdir()
    config = {"ops": {"erase": {"config": {"request": str(request), "receipt": str(receipt)}}}}
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        job = loaded().resolve_job_def("erase_subjects")
        result = job.execute_in_process(run_config=config, instance=instance, raise_on_error=False)
    [event] = [event for event in result.all_events if event.is_step_failure]
    told = event.step_failure_data.user_failure_data
    assert told is not None
    assert told.metadata["receipt"].value == {"signed": "receipt"}
    assert request.exists()


@pytest.mark.slow
def test_a_run_erases_writes_the_receipt_and_keeps_no_word_of_whom_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted, kept = Planted(tmp_path / "home"), tmp_path / "dagster"
    monkeypatch.setenv("ENGAGEMENT_PLATFORM_HOME", str(planted.settings.home))
    kept.mkdir()
    request, receipt = tmp_path / "request.json", tmp_path / "receipt.json"
    request.write_text(json.dumps({"subject": BOB, "organizations": ["org"]}))
    config = {"ops": {"erase": {"config": {"request": str(request), "receipt": str(receipt)}}}}
    job = loaded().resolve_job_def("erase_subjects")
    with dg.instance_for_test(temp_dir=str(kept)) as instance:
        assert job.execute_in_process(run_config=config, instance=instance).success
        places = {place["name"]: place["rows"] for place in json.loads(receipt.read_text())["places"]}
        assert places["engagement/data"] == 8, "of nine one is of another organization"
        assert not request.exists()
        assert places_with([kept], [BOB.encode()]) == []
        context = dg.build_sensor_context(instance, resources={"platform": Platform()}, definitions=loaded())
        assert isinstance(loaded().resolve_sensor_def("erasure_unfinished")(context), dg.SkipReason)
        with pytest.raises(RuntimeError, match="died"):
            planted.eraser(Callbacks(observe=dying_at("data.rewrite:after"))).run(REF, WHOM)
        assert isinstance(loaded().resolve_sensor_def("erasure_unfinished")(context), dg.RunRequest)
        assert job.execute_in_process(instance=instance).success
    assert not planted.stores.checkpoints.unfinished()
    assert BOB not in repr(planted.rows(DATA))
