"""Every link, picture, script and style sheet of a built site leads to a file of it, and every anchor to an element.

    python scripts/check_links.py site

Addresses elsewhere are not asked for: the check needs no network. Exit code 0: all lead somewhere; 1: some do not.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    """The links of a page, and the anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.update(found[name] or "" for name in ("id", "name") if name in found)
        link = found.get(ATTRIBUTES.get(tag, ""))
        if link:
            self.links.add(link)


def broken(site: Path) -> list[str]:
    """One line for each link that leads nowhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            # The page for missing files is served from any folder, so its addresses start at the root of the site.
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{path.relative_to(site)}: {link}: no such file")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{path.relative_to(site)}: {link}: no such anchor")
    return found


def main() -> int:
    """Check the site that is named on the command line."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    if not (site / "index.html").is_file():
        print(f"{site} has no index.html; expected a built site. Fix: make docs.", file=sys.stderr)
        return 1
    lines = broken(site)
    print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
