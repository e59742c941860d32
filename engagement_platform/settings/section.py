"""The base of all settings and of each section of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

KIB, MIB, GIB = 1024, 1024**2, 1024**3

Duration = Annotated[timedelta, Field(ge=timedelta(0))]


class Section(BaseModel):
    """A group of settings; unknown names are refused so that a typing error is not silently a default."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        # What cannot be read may be a secret.
        hide_input_in_errors=True,
    )
