"""The job that erases a subject, launched by hand with its configuration, and a sensor that finishes one.

What it does is `erasing.erase`. The subject is named in a file and not in the configuration, which Dagster keeps.
"""

import json
from pathlib import Path

import dagster as dg
from pydantic import Field

from engagement_platform.defs.ingestion import UNBOUNDED
from engagement_platform.defs.materialization_events import callbacks_of
from engagement_platform.defs.platform import Platform
from engagement_platform.defs.sensors import unfinished_sensor
from engagement_platform.lake.erased import ERASE_SUBJECTS

ERASE_POOL = "erase"


class EraseConfig(dg.Config):
    """Whom to erase. Without a request: finish what was interrupted."""

    request: str = Field(
        default="",
        description="Path of a JSON file: subject, and as wanted game, persons, organizations, profiles (lists), now. "
        "It is removed once the receipt is written.",
    )
    receipt: str = Field(default="", description="Path of the receipt; must be given with a request.")


@dg.op(pool=ERASE_POOL)
def erase(context: dg.OpExecutionContext, config: EraseConfig, platform: Platform) -> None:
    """The receipt as metadata of the run; it names nobody."""
    from engagement_platform.erasing import erase as erasures

    settings, callbacks = platform.settings(), callbacks_of(context)
    if not config.request:
        finished = len(list(erasures.finish(settings, callbacks)))
        context.add_output_metadata({"finished": finished})
        return
    if not config.receipt:
        raise dg.Failure("An erasure without a receipt cannot be proved: give `receipt`. Nothing was erased.")
    request, receipt = Path(config.request), Path(config.receipt)
    if not receipt.absolute().parent.is_dir():
        raise dg.Failure(f"There is no folder {receipt.absolute().parent} for the receipt. Nothing was erased.")
    asked = erasures.Request.read(request)
    # How many only, since Dagster keeps metadata: `engagement-platform erase` lists them.
    near = len(erasures.near_ids(settings, asked))
    done = erasures.erase(settings, asked, callbacks)
    try:
        receipt.write_text(json.dumps(done.receipt, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        # Asked for once more, it would say that nothing was there.
        raise dg.Failure(
            f"The subject is erased, and the receipt could not be written: {error}. It is in the metadata of this "
            "failure: keep it.",
            metadata={"receipt": dg.MetadataValue.json(dict(done.receipt))},
            allow_retries=False,
        ) from error
    request.unlink()
    shown = {"receipt": dg.MetadataValue.json(dict(done.receipt)), "left": done.left, "not purged": list(done.kept)}
    context.add_output_metadata({**shown, "near ids": near})
    if done.left:
        raise dg.Failure(f"{done.left} rows are left; the receipt says where. Make the same request again.")


@dg.job(tags=UNBOUNDED)
def erase_subjects() -> None:
    """Erase a subject everywhere and write the receipt, or finish an erasure that was interrupted."""
    erase()


def definitions() -> dg.Definitions:
    unfinished = unfinished_sensor(
        "erasure_unfinished",
        erase_subjects.name,
        ERASE_SUBJECTS,
        "Launches a run that finishes an erasure that was interrupted: until then other jobs wait.",
    )
    return dg.Definitions(jobs=[erase_subjects], sensors=[unfinished])
