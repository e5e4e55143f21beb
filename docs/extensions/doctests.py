"""Docstrings for the reference: doctests become code blocks, which Markdown would take for quotations."""

from __future__ import annotations

import textwrap
from typing import Any

import griffe


class FencedDoctests(griffe.Extension):
    """Fence every run of lines that starts with ``>>>`` and ends at a blank line."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with its doctests in ``pycon`` fences; a literal block's ``::`` loses one colon."""
    lines: list[str] = []
    inside = False
    for line in textwrap.dedent(text).splitlines():
        starts = not inside and line.lstrip().startswith(">>>")
        ends = inside and not line.strip()
        if starts or ends:
            lines.append("```pycon" if starts else "```")
            inside = starts
        lines.append(line[:-1] if not inside and line.endswith("::") else line)
    return "\n".join([*lines, "```"] if inside else lines)
