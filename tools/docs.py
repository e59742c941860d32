"""Writes the parts of docs/ that come from the code: settings, commands, reason codes, licences.  python -m tools.docs

Only what a person would otherwise copy by hand; the other pages are written, and tested, by people.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from engagement_platform.cli import app
from engagement_platform.pipelines.engagements import rules
from engagement_platform.pipelines.kafka_tables import job as kafka_tables
from engagement_platform.pipelines.mutations import ingest
from engagement_platform.pipelines.profiles import job as profiles
from engagement_platform.settings import ENV_PREFIX, Settings
from engagement_platform.sources.messages import Reason
from tools import licences

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

COMPARING: Mapping[str, str] = {**rules.REASONS, **ingest.REASONS, **profiles.REASONS, **kafka_tables.REASONS}
"""Reason codes of what decoding accepts and the tables contradict."""

_SOMEBODYS_HOME = "/somebody"
_GENERATED = "<!-- Made from the code by `make docs`; edits are lost. -->\n\n"
# Between these, a page that people write holds a part that is generated.
_BEGIN, _END = "<!-- {name}: made by `make docs` -->", "<!-- end of {name} -->"

_KINDS: Mapping[type, str] = {
    str: "text", int: "whole number", float: "number", bool: "true or false", timedelta: "duration",
    datetime: "time with offset", date: "date", Path: "path", SecretStr: "text, never printed",
}  # fmt: skip
_UNITS = (("day", "days", 86_400), ("h", "h", 3_600), ("min", "min", 60), ("s", "s", 1))


def settings_page() -> str:
    """docs/settings.md: every setting with its variable, kind, default and reason."""
    sections = [
        f"## {name}\n\n{_settings_table(_section(field), prefix=name)}"
        for name, field in Settings.model_fields.items()
        if _is_section(field)
    ]
    own = {name: field for name, field in Settings.model_fields.items() if not _is_section(field)}
    return "\n\n".join([_SETTINGS_INTRO, f"## Top level\n\n{_rows(own, '')}", *sections]) + "\n"


_SETTINGS_INTRO = (
    _GENERATED
    + f"""# Settings

The first place that names a setting wins: environment variables `{ENV_PREFIX}*`, then `platform.toml` in the
working directory (another file: `{ENV_PREFIX}CONFIG`), then the default. A section is a table in the file; in a
variable two underscores follow its name:

```toml
[drain]
idle_timeout = 20
```

- Durations: in the file a number of seconds; in a variable, and also in the file, `PT20S`, `PT10M`, `P7D` (ISO 8601)
  or `00:00:20`. A bare number in a variable is refused.
- Tables of options (`kafka.security`, `kafka.spark_options`, `spark.conf`) are one JSON object in a variable.
- A name that no setting has is refused, with the nearest one, in a variable and in the file: no other program may have
  variables that begin alike.
- `~` stands for your home folder; with `XDG_DATA_HOME` or `XDG_CACHE_HOME` set, those folders are used instead."""
)


def _settings_table(model: type[BaseModel], prefix: str) -> str:
    return _rows(model.model_fields, f"{prefix}.")


def _rows(fields: Mapping[str, FieldInfo], prefix: str) -> str:
    lines = ["| setting | what it takes | default | why |", "|---|---|---|---|"]
    for name, field in fields.items():
        path = f"{prefix}{name}"
        variable = ENV_PREFIX + path.replace(".", "__").upper()
        cells = (f"`{path}`<br>`{variable}`", _takes(field), _default(field), _plain(field.description or ""))
        lines.append(_row(*cells))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _plain(text: str) -> str:
    """Text on one line, in which Markdown sees no tags: `<home>` would vanish."""
    return " ".join(text.split()).replace("<", "&lt;").replace(">", "&gt;")


def _section(field: FieldInfo) -> type[BaseModel]:
    annotation = field.annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return annotation


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _takes(field: FieldInfo) -> str:
    bounds = [f"{sign} {bound}" for rule in field.metadata for sign, bound in _bound(rule)]
    return ", ".join([_kind(field.annotation), *bounds])


def _bound(rule: object) -> Iterator[tuple[str, object]]:
    for name, sign in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if (bound := getattr(rule, name, None)) is not None:
            yield sign, bound


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(annotation))
    if origin in (Union, UnionType):
        return ", ".join(_kind(part) for part in get_args(annotation) if part is not NoneType) + ", or nothing"
    if origin is list:
        return f"list of {_kind(get_args(annotation)[0])}"
    if origin is dict:
        secret = ", values never printed" if get_args(annotation)[1] is SecretStr else ""
        return f"table of text{secret}"
    return _KINDS[annotation]


def _default(field: FieldInfo) -> str:
    with _anybodys_environment():
        value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ({}, []):
        return "nothing"
    return f"`{_text(value)}`"


def _text(value: object) -> str:
    match value:
        case timedelta():
            return duration(value)
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat()
        case list():
            return ", ".join(map(_text, value))
        case Path():
            return str(value).replace(_SOMEBODYS_HOME, "~", 1)
    return str(value)


def duration(value: timedelta) -> str:
    """A duration in the largest unit that it is a whole number of.

    >>> [duration(timedelta(seconds=s)) for s in (1, 90, 600, 7_200, 86_400, 172_800)]
    ['1 s', '90 s', '10 min', '2 h', '1 day', '2 days']
    """
    seconds = value.total_seconds()
    for one, many, size in _UNITS:
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return f"{count} {one if count == 1 else many}"
    return f"{seconds:g} s"


@contextmanager
def _anybodys_environment() -> Iterator[None]:
    """Defaults that depend on the user's folders come out the same for everybody."""
    kept = dict(os.environ)
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    os.environ["HOME"] = _SOMEBODYS_HOME
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def cli_page() -> str:
    """docs/cli.md: every command with its help, arguments and options."""
    # What Typer makes of the app is private to it in recent versions, so no type of it is named here.
    group: Any = typer.main.get_command(app)
    intro = (
        f"{_GENERATED}# Command line\n\n{group.help}\n\nEvery command takes its settings from where "
        "[settings.md](settings.md) says, and `--help`. An error meant for people is one line on stderr with exit "
        "status 1; settings that cannot be used end a command with 2, before anything starts. After "
        "`--install-completion` a shell completes commands and options."
    )
    return "\n\n".join([intro, *(_command(name, command) for name, command in _commands(group))]) + "\n"


def _commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its full name; of a group such as `alert` those in it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _command(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("-")]
    options = [parameter for parameter in command.params if parameter.opts[0].startswith("-")]
    shown = [placeholder if a.required else f"[{placeholder}]" for a in arguments for placeholder in [_placeholder(a)]]
    usage = ["engagement-platform", name, *shown, *(["[OPTIONS]"] if options else [])]
    parts = [f"## {name}", f"```\n{' '.join(usage)}\n```", _help(command.help)]
    if arguments or options:
        rows = [_row(f"`{_placeholder(argument)}`", argument.help or "") for argument in arguments]
        rows += [_row(f"`{_option(option)}`", _option_help(option)) for option in options]
        parts.append("\n".join(["| | |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _option(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {_placeholder(option)}"


def _option_help(option: Any) -> str:
    """What it is for, with its default where it has one that its help leaves out."""
    text = option.help or ""
    told = option.is_flag or option.default in (None, "", [], ()) or callable(option.default) or "efault" in text
    return text if told else f"{text} Default: {option.default}."


def _placeholder(parameter: Any) -> str:
    """What stands for its value: the choices, where these are all there are."""
    annotation = parameter.type_descriptor.annotation
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    return "|".join(map(str, choices)) or parameter.metavar or str(parameter.name.upper())


def _help(text: str) -> str:
    """A command's docstring as Markdown: paragraphs joined, its example as a block that can be copied."""
    prose, _, example = text.partition("Example: ")
    paragraphs = [" ".join(paragraph.split()) for paragraph in prose.split("\n\n") if paragraph.strip()]
    return "\n\n".join([*paragraphs, *([f"```sh\n{example.strip()}\n```"] if example else [])])


def reason_table() -> str:
    """Every reason code with its sentence: those of decoding, then those of the rules."""
    rows = [_row(f"`{one.value}`", one.sentence.replace("{field}", "*field*"), "decoding") for one in Reason]
    rows += [_row(f"`{code}`", said, "comparing with the table") for code, said in COMPARING.items()]
    return "\n".join(["| code | sentence | found by |", "|---|---|---|", *rows])


def with_part(page: str, name: str, part: str) -> str:
    """The page with what stands between the marks of `name` replaced. Raises ValueError without such marks."""
    begin, end = _BEGIN.format(name=name), _END.format(name=name)
    replaced, count = re.subn(
        re.escape(begin) + ".*?" + re.escape(end), lambda _: f"{begin}\n\n{part}\n\n{end}", page, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"the page needs the marks {begin} and {end} exactly once, and has them {count} times")
    return replaced


def generated() -> dict[Path, str]:
    """Every page that holds something generated, as it should be. Pages that people wrote are read for their rest."""
    whole: Mapping[str, Callable[[], str]] = {
        "settings.md": settings_page, "cli.md": cli_page, "licences.md": licences.page
    }  # fmt: skip
    pages = {DOCS / name: page() for name, page in whole.items()}
    ingestion = DOCS / "ingestion.md"
    pages[ingestion] = with_part(ingestion.read_text(encoding="utf-8"), "reason codes", reason_table())
    return pages


def main() -> None:
    """Write what differs and say so."""
    for path, text in generated().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
