"""Types that say more of a value than Python's: ``tools/make_schema.py`` writes it into the schema of the report."""

from __future__ import annotations

from typing import Annotated, Any


class Keywords:
    """Keywords of JSON Schema that narrow or describe the type before them in ``Annotated``."""

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


Whole = Annotated[int, Keywords(minimum=0)]
"""An integer of 0 or more, such as a rank."""
Text = Annotated[str, Keywords(minLength=1)]
"""A text that is not empty."""
