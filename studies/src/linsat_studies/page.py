"""An HTML page made of headings, paragraphs, tables and embedded pictures; it needs no other file."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from linsat_studies.figures import embed
from linsat_studies.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; font-size: 0.92rem; }
th, td { padding: 0.25rem 0.8rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #444; vertical-align: bottom; white-space: normal; }
tbody tr:nth-child(even) { background: #f6f7f9; }
tr.ours td { font-weight: 600; background: #e8f1fb; }
tr.group td { font-weight: 600; color: #555; background: none; padding-top: 0.7rem; }
img { max-width: 100%; height: auto; } .note { color: #666; font-size: 0.9rem; } .scroll { overflow-x: auto; }
code { background: #f2f2f2; padding: 0.1rem 0.3rem; border-radius: 3px; }
"""


def machine() -> str:
    """What numbers of a page were measured on, in words."""
    import torch

    threads = torch.get_num_threads()
    return (
        f"{os.cpu_count()} processors ({platform.machine()}), {threads} thread{'s' * (threads > 1)}, torch "
        f"{torch.__version__.split('+')[0]}, no GPU"
    )


class Page:
    """Collects parts in order; ``write`` makes the file."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = [f"<h1>{escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Start a section."""
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, *, note: bool = False) -> None:
        """Add a paragraph; a note is set smaller. Words between backquotes are set as code."""
        pieces = escape(text).split("`")
        marked = "".join(f"<code>{piece}</code>" if odd % 2 else piece for odd, piece in enumerate(pieces))
        start = '<p class="note">' if note else "<p>"
        self.parts.append(f"{start}{marked}</p>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, ours: Sequence[int] = ()) -> None:
        """Add a table; rows numbered in ``ours`` stand out, and a row of one cell heads the group below it."""
        body = []
        for number, row in enumerate(rows):
            if len(row) == 1:
                body.append(f'<tr class="group"><td colspan="{len(header)}">{escape(row[0])}</td></tr>')
                continue
            cells = "".join(f"<td>{escape(cell)}</td>" for cell in row)
            start = '<tr class="ours">' if number in ours else "<tr>"
            body.append(f"{start}{cells}</tr>")
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        filled = "".join(body)
        self.parts.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{filled}</tbody></table></div>'
        )

    def picture(self, figure: Figure, alternative: str) -> None:
        """Embed a picture; ``alternative`` says what it shows, for those who cannot see it."""
        self.parts.append(f'<p><img src="{embed(figure)}" alt="{escape(alternative, quote=True)}"></p>')

    def left_out(self, notes: Sequence[str]) -> None:
        """Say what the page lacks and why, if anything."""
        if notes:
            self.heading("Left out")
        for text in notes:
            self.text(text, note=True)

    def write(self, path: Path) -> None:
        """Write the page."""
        page = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head>\n<body>\n"
            + "\n".join(self.parts)
            + "\n</body></html>\n"
        )
        write_whole(path, lambda file: file.write(page.encode("utf-8")))
