"""The command that erases a subject: erase."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engagement_platform.cli.common import Json, Yes, callbacks, flag, subject_id
from engagement_platform.errors import PlatformError

if TYPE_CHECKING:
    from engagement_platform.erasing.erase import Request
    from engagement_platform.settings import Settings


def erase(
    subject: Annotated[
        str | None,
        typer.Option(help="Whom to erase, - reads a line of standard input; with --verify, look for this id too."),
    ] = None,
    game: Annotated[str | None, typer.Option(help="Only in this game; nothing of engagements and profiles.")] = None,
    person: Annotated[
        list[str] | None, typer.Option(help="Its id in engagements, where that is another one, or -; repeatable.")
    ] = None,
    organization: Annotated[
        list[str] | None, typer.Option(help="Engagements of this organization only; repeatable. Default: of all.")
    ] = None,
    profile: Annotated[
        list[str] | None, typer.Option(help="Its key in profiles, where that is another one, or -; repeatable.")
    ] = None,
    now: Annotated[bool, flag("--now", "Delete what former versions keep at once, unless they are read.")] = False,
    finish: Annotated[bool, flag("--finish", "Only finish erasures that were interrupted.")] = False,
    verify: Annotated[
        Path | None,
        typer.Option(metavar="RECEIPT", help="Erase nothing; look whether it still holds."),
    ] = None,
    as_json: Json = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the receipt here. Default: print it.")] = None,
    yes: Yes = False,
) -> None:
    """Erase a subject for good: keys, personal data, events, engagements, profiles; what comes later is discarded.

    Its id is taken for that of a person in every organization, and of a profile, unless --person, --organization or
    --profile say otherwise. Each - for an id reads one line of standard input, in the order --subject, --person,
    --profile: every user of a machine sees the arguments of its commands. The receipt is signed JSON and names the
    subject by a keyed hash only. It says what is left for VACUUM, which runs at night only where
    `maintenance.nightly_vacuum` is on, and what is not reached.
    --verify RECEIPT looks again: at tombstone, keys and vault; with --subject (and the same options) also at every
    other place. What it did not look at it says (`not looked`).
    Ids that differ from these by case, Unicode form or blank ends only (pii.folding) are listed before it begins, and
    are not erased: some may be the same person's. An id that decoding would refuse is refused with the rule's name.
    --now ends time travel and restores to before.
    Exit status: 0, 1 when something is left or cannot be done.
    Example: engagement-platform erase --subject p-42 --yes --out receipt.json
    """
    from engagement_platform.erasing import erase as erasures
    from engagement_platform.settings import Settings

    if finish == (subject is not None or verify is not None):
        raise typer.BadParameter("give --subject ID, or --verify RECEIPT, or --finish alone")
    settings = Settings()

    if finish:
        finished = len(list(erasures.finish(settings, callbacks())))
        typer.echo(f"{finished} erasures were finished.")
        return
    asked = None
    if subject is not None:
        subject = subject_id(subject)
        persons, profiles = ([subject_id(id_) for id_ in ids or ()] for ids in (person, profile))
        asked = erasures.Request(subject, game, persons, organization or (), profiles, now)
    if verify is not None or asked is None:
        assert verify is not None, "one of them was given"
        checks = erasures.verify(settings, verify, asked)
        holds = all(check.holds for check in checks)
        if as_json:
            typer.echo(json.dumps({"holds": holds, "checks": [asdict(check) for check in checks]}, indent=2))
        else:
            for check in checks:
                typer.echo(f"{check.what:36} {check.state:10} {check.seen}")
        raise typer.Exit(0 if holds else 1)
    if out is not None and not out.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {out.absolute().parent}", param_hint="--out")
    _list_near(settings, asked)
    if not yes:
        typer.confirm(f"Erase {subject} for good?", abort=True)
    done = erasures.erase(settings, asked, callbacks())
    sentences = [f"Not purged yet: {sentence}" for sentence in done.kept]
    sentences += [f"Left as it is: {sentence}" for sentence in done.stays]
    if done.left:
        sentences.append(
            "Not everything is erased: places of the receipt with `left` or `stays` say what. See to it, then make the "
            "same call again."
        )
    for sentence in sentences:
        typer.echo(sentence, err=True)
    _hand_out(json.dumps(done.receipt, indent=2), out)
    raise typer.Exit(1 if done.left else 0)


def _list_near(settings: Settings, asked: Request) -> None:
    from engagement_platform.erasing.erase import NEAR_UNKNOWN, near_ids

    for near, where in near_ids(settings, asked):
        typer.echo(f"Not erased, but near: {near!a} in {where}; pii.folding overlooks the difference.", err=True)
    if settings.pii.folding:
        typer.echo(NEAR_UNKNOWN, err=True)


def _hand_out(receipt: str, out: Path | None) -> None:
    """Print a receipt, or write it to a file. Raises PlatformError where that cannot be; then it is printed, too."""
    if out is None:
        typer.echo(receipt)
        return
    try:
        out.write_text(receipt + "\n", encoding="utf-8")
    except OSError as error:
        # There is no other like it: asked for again, it says that nothing was there.
        typer.echo(receipt)
        raise PlatformError(f"No receipt can be written to {out}: {error.strerror}. Keep what is printed.") from error
