"""First files of a component, which work as they are once names are changed. Nothing is made at import."""

import warnings
from textwrap import indent
from typing import Any

import dagster as dg

# dg makes the scaffolder of every component in the environment, of those of dagster-spark, too, which dagster-pyspark
# brings along and nobody has asked for; each `dg check defs` would warn that it is a preview.
warnings.filterwarnings("ignore", "Class `SparkDeclarativePipelineScaffolder`", dg.PreviewWarning)


def scaffolder(example: str) -> type[dg.Scaffolder[Any]]:
    """A scaffolder that writes `defs.yaml` with these attributes into the folder that was asked for."""

    class Example(dg.Scaffolder[Any]):
        """Writes the example; an existing file is replaced only by the tool's own consent, or appended to."""

        def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
            """One document of YAML; where Python is asked for, the empty function of Dagster's own."""
            if request.scaffold_format == "python":
                dg.scaffold_component(request)
                return
            document = f"type: {request.type_name}\nattributes:\n{indent(example, '  ')}"
            # To be appended to is the file itself; otherwise the path is the folder for a new one.
            file = request.target_path if request.append else request.target_path / "defs.yaml"
            before = f"{file.read_text()}---\n" if request.append else ""
            file.write_text(before + document)

    return Example
