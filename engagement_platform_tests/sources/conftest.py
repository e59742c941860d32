"""Streams from S3 through SQS, stopped when a test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engagement_platform_tests.conftest import Moto
from engagement_platform_tests.sources.pipe import MakePipe, Pipe


@pytest.fixture
def make(moto: Moto, tmp_path: Path) -> Iterator[MakePipe]:
    made: list[Pipe] = []

    def pipe(**options: Any) -> Pipe:
        made.append(Pipe(moto, tmp_path / "state", **options))
        return made[-1]

    yield pipe
    for each in made:
        for reader in each.readers:
            reader.stop()
