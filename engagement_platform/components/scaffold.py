"""First files of a component, which work as they are once names are changed. Nothing is made at import."""

from textwrap import indent
from typing import Any

import dagster as dg


def scaffolder(example: str) -> type[dg.Scaffolder[Any]]:
    """A scaffolder that writes `defs.yaml` with these attributes into the folder that was asked for."""

    class Example(dg.Scaffolder[Any]):
        """Writes the example; an existing file is replaced only by the tool's own consent, or appended to."""

        def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
            """One document of YAML."""
            request.target_path.mkdir(parents=True, exist_ok=True)
            document = f"type: {request.type_name}\nattributes:\n{indent(example, '  ')}"
            file = request.target_path / "defs.yaml"
            before = f"{file.read_text()}---\n" if request.append and file.is_file() else ""
            file.write_text(before + document)

    return Example
