"""The licences of all that is locked, and of the jars that `setup` downloads, as they declare them: docs/licences.md.

Of the packages that are installed; those for other systems only are not. Raises where a licence is not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from xml.etree import ElementTree

from engagement_platform.lake.jars import resolve_jars
from engagement_platform.settings import SparkSettings

ROOT = Path(__file__).resolve().parent.parent

ALLOWED: Mapping[str, str] = {
    "MIT": r"(The )?MIT( License)?|MIT-0|MIT-CMU|DFSG approved",
    "Apache 2.0": r"Apache-2\.0|Apache Software License|(The )?Apache (Software )?License.*|Apache 2\.0 License",
    "BSD": r"0BSD|BSD-[23]-Clause|BSD( [23]-Clause)?( License)?|3-Clause BSD License|Go License",
    "ISC": r"ISC|ISC License \(ISCL\)",
    "PSF": r"PSF-2\.0|Python Software Foundation License|CNRI-Python",
    "MPL 2.0": r"MPL-2\.0|Mozilla Public License 2\.0 \(MPL 2\.0\)",
    "public domain": r"CC0-1\.0|Unlicense|Zlib|Public Domain, per Creative Commons CC0",
}
"""Name -> what packages write for it. MPL binds those who change files of the package, which nobody does here."""
EXCEPTIONS: Mapping[str, str] = {
    "psycopg2-binary": "LGPL with exceptions; used unchanged, only with stores in PostgreSQL",
}
"""Package -> why another licence is fine."""
BY_PYTHON = "one of these, by the version of Python"
"""Row of packages of which the lock has a version for each range of Pythons: the page is the same on all of them. What
the installed one declares is looked at like any other's."""


class LicenceNotAllowed(Exception):
    """A package came in whose licence nobody has looked at."""


def page() -> str:
    """docs/licences.md. Raises LicenceNotAllowed."""
    named = by_package((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    return "\n".join(
        (
            "<!-- Made from the lock by `make docs`; edits are lost. -->\n",
            "# Licences\n",
            "What the packages in `requirements.lock` declare, and the jars that `setup` downloads. One with another",
            "licence fails `make docs` and a test until `tools/licences.py` allows it. The platform itself is under",
            "the Apache License 2.0.\n",
            *_table("packages", named),
            *_table("jars", {jar: name_of(jar, written) for jar, written in declared_by_jars()}),
        )
    )


def by_package(lock: str) -> dict[str, str]:
    """Each installed package of a lock -> what the page says of it. Raises LicenceNotAllowed."""
    several = set(re.findall(r"^([^\s=]+)==\S+ ; python_full_version", lock, re.MULTILINE))
    named = {package: name_of(package, written) for package, written in declared(lock)}
    return {package: BY_PYTHON if package in several else name for package, name in named.items()}


def _table(header: str, named: Mapping[str, str]) -> Iterator[str]:
    by_licence: dict[str, list[str]] = {}
    for one, licence in named.items():
        by_licence.setdefault(licence, []).append(one)
    yield from (f"| licence | {header} |", "|---|---|")
    yield from (f"| {licence} | {', '.join(names)} |" for licence, names in sorted(by_licence.items()))
    yield ""


def declared(lock: str) -> Iterator[tuple[str, str]]:
    """(package, its licences as it writes them) of each installed package of a lock."""
    for package in re.findall(r"^([a-z0-9][a-z0-9._-]*)==", lock, re.MULTILINE):
        try:
            about = metadata(package)
        except PackageNotFoundError:
            continue
        classified = (each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or () if "License ::" in each)
        (expression, *_), (plain, *_) = (about.get_all(name) or [""] for name in ("License-Expression", "License"))
        yield package, expression or "; ".join(sorted(set(classified))) or plain.partition("\n")[0]


def declared_by_jars() -> Iterator[tuple[str, str]]:
    """(jar without version, its licences as it writes them), in order, from what Ivy keeps of each that it downloads.

    Raises LicenceNotAllowed where it has kept nothing.
    """
    cache = SparkSettings().jar_cache.expanduser()
    for jar in sorted({jar.stem for conf in ("spark", "kafka") for jar in resolve_jars(conf, cache)}):
        name, version = re.split(r"-(?=\d[^-]*(?:-\d+)?$)", jar, maxsplit=1)
        kept = next((cache / "ivy").glob(f"*/{name}/ivy-{version}.xml"), None)
        if kept is None:
            raise LicenceNotAllowed(f"Ivy has kept nothing of {jar}. Delete {cache} and run `make setup` again.")
        found = ElementTree.parse(kept).getroot().iterfind("info/license")  # noqa: S314
        yield name, "; ".join(dict.fromkeys(each.attrib["name"] for each in found))


def name_of(package: str, written: str) -> str:
    """What the page says of a package. Raises LicenceNotAllowed.

    >>> name_of("some", "MIT OR Apache-2.0"), name_of("some", "Apache Software License; BSD License")
    ('MIT, Apache 2.0', 'Apache 2.0, BSD')
    """
    if package in EXCEPTIONS:
        return EXCEPTIONS[package]
    parts = re.split(r" (?:OR|AND) |; ", written)
    names = [next((name for name, forms in ALLOWED.items() if re.fullmatch(forms, part)), None) for part in parts]
    if None in names:
        raise LicenceNotAllowed(
            f"{package} declares the licence {written!r}, which is none of {', '.join(ALLOWED)}. Nothing was written. "
            "Look at it, and allow it in tools/licences.py or do without the package."
        )
    return ", ".join(dict.fromkeys(filter(None, names)))
