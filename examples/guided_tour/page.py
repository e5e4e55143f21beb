"""The demo's page: sections in order, pictures inside the file, nothing fetched."""

from __future__ import annotations

import base64
import io
import platform
from collections.abc import Sequence
from html import escape
from pathlib import Path

import torch
from matplotlib.figure import Figure

import linsat
from guided_tour.sections import Picture, Section
from linsat_studies.files import write_whole
from linsat_studies.page import Page

_STYLE = """
:root { --ink: #1d2430; --soft: #5d6878; --line: #e3e7ed; --accent: #0b6e99; --back: #f5f7f9; }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; color: var(--ink); background: var(--back); font: 17px/1.6 system-ui, sans-serif; }
.hero { background: linear-gradient(135deg, #0b3d57, #0b6e99 60%, #2a93b8); color: #fff; padding: 3rem 0 2.4rem; }
.hero > div, main, footer { max-width: 72rem; margin: 0 auto; padding-left: 1.2rem; padding-right: 1.2rem; }
h1 { font-size: clamp(1.7rem, 4vw, 2.6rem); line-height: 1.15; margin: 0 0 .7rem; letter-spacing: -.01em; }
.hero p { font-size: 1.15rem; max-width: 46rem; margin: 0; color: #e3f1f7; }
nav { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: 1.5rem; }
nav a { color: #fff; text-decoration: none; background: #ffffff24; padding: .25rem .9rem; border-radius: 99px; }
nav a:hover { background: #ffffff45; }
main { padding-top: 1.4rem; padding-bottom: 1.4rem; display: grid; gap: 1.4rem;
  grid-template-columns: minmax(0, 1fr); }
section { background: #fff; border: 1px solid var(--line); border-radius: 14px; padding: clamp(1.1rem, 3vw, 2rem);
  min-width: 0; box-shadow: 0 1px 4px #0b3d570d; scroll-margin-top: 1rem; }
h2 { margin: 0 0 .5rem; font-size: 1.5rem; line-height: 1.25; }
p { max-width: 54rem; margin: .5rem 0 1rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem; margin: 1.1rem 0; }
.facts div { border-left: 4px solid var(--accent); padding: .1rem 0 .1rem .9rem; }
.facts b { display: block; font-size: 1.55rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: .92rem; line-height: 1.35; display: block; }
.pictures { display: flex; flex-wrap: wrap; gap: 0 2rem; }
figure { margin: 1.2rem 0 .6rem; flex: 1 1 min(26rem, 100%); min-width: 0; max-width: 46rem; }
.scroll { overflow-x: auto; }
figure.wide { flex-basis: 100%; max-width: none; }
img { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .95rem; margin-top: .5rem; max-width: 54rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .95rem; margin: 1rem 0;
  min-width: 60%; }
th, td { padding: .35rem 0 .35rem 1.2rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.ours td { font-weight: 700; color: var(--accent); } tr.group td { font-weight: 600; padding-top: .9rem; }
code, pre { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; background: #eef2f5; border-radius: 5px; }
code { padding: .1rem .35rem; } pre { padding: .8rem 1rem; white-space: pre-wrap; overflow-x: auto; margin: 1rem 0 0; }
.missing { border: 1px dashed #c9a24a; background: #fff9ea; border-radius: 10px; padding: .3rem 1.1rem;
  overflow-wrap: anywhere; }
footer { color: var(--soft); font-size: .92rem; padding-bottom: 3rem; }
@media (max-width: 46rem) { figure { flex-basis: 100%; } .wide img { width: 50rem; } body { font-size: 16px; } }
@media print { nav { display: none; } section { break-inside: avoid; } }
"""
_DPI = 150  # sharp on screens of twice the usual density


class TourPage(Page):
    """The demo's page: a `linsat_studies.page.Page` in sections, with facts, captions and another head."""

    def __init__(self, title: str, lead: str) -> None:
        super().__init__(title)
        self.lead = lead
        self.parts = []
        self.links: list[tuple[str, str]] = []

    def add(self, section: Section) -> None:
        """Append a section."""
        self.links.append((section.anchor, section.anchor.capitalize()))
        self.parts.append(f'<section id="{escape(section.anchor, quote=True)}">')
        self.heading(section.title)
        for words in section.words:
            self.text(words)
        if section.missing:
            self.parts.append('<div class="missing">')
            self.text(f"Not shown here: {section.missing}")
            self.parts.append("</div>")
        if section.facts:
            self.facts(section.facts)
        if section.pictures:
            self.parts.append('<div class="pictures">')
            for picture in section.pictures:
                self.captioned(picture)
            self.parts.append("</div>")
        if section.rows:
            self.table(section.header, section.rows, ours=section.ours)
        if section.code:
            self.parts.append(f"<pre>{escape(section.code)}</pre>")
        self.parts.append("</section>")

    def facts(self, facts: Sequence[tuple[str, str]]) -> None:
        """Big numbers side by side, each with what it is."""
        cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>" for value, what in facts)
        self.parts.append(f'<div class="facts">{cells}</div>')

    def captioned(self, picture: Picture) -> None:
        """A picture with its caption."""
        start = '<figure class="wide">' if picture.wide else "<figure>"
        image = f'<img src="{_sharp(picture.figure)}" alt="{escape(picture.alternative, quote=True)}">'
        caption = f"<figcaption>{escape(picture.caption)}</figcaption>"
        self.parts.append(f'{start}<div class="scroll">{image}</div>{caption}</figure>')

    def write(self, path: Path) -> None:
        """Write the page, whole or not at all."""
        links = "".join(f'<a href="#{escape(anchor, quote=True)}">{escape(title)}</a>' for anchor, title in self.links)
        page = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head>\n<body>\n"
            f'<header class="hero"><div><h1>{escape(self.title)}</h1><p>{escape(self.lead)}</p>'
            f"<nav>{links}</nav></div></header>\n"
            "<main>\n" + "\n".join(self.parts) + f"\n</main>\n<footer>{escape(machine())}</footer>\n</body></html>\n"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lambda file: file.write(page.encode("utf-8")))


def machine() -> str:
    """What the numbers were measured with."""
    return (
        f"Every number on this page was measured in the run that made it: linsat {linsat.__version__}, torch "
        f"{torch.__version__}, {torch.get_num_threads()} torch thread(s), Python {platform.python_version()} on "
        f"{platform.system()} {platform.machine()}. On a busy machine times vary; violations do not."
    )


def _sharp(figure: Figure) -> str:
    """The figure as a data address."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
