"""Tutorials: one source each, a notebook made from it, and a page of the site made from the notebook.

    python docs/extensions/notebooks.py     writes docs/tutorials/*.ipynb, without outputs, from docs/tutorials/src/*.py

As a hook of mkdocs it makes a page of every notebook. With NOTEBOOKS=run in the environment, which `make docs` sets,
the notebook is executed first and the page has its outputs; a cell that raises stops the build.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parents[1] / "tutorials"
_CELL = re.compile(r"^# %%(?P<kind> \[markdown\])?\n", re.MULTILINE)
_LINK = re.compile(r"\((?P<path>[\w./-]+)\.ipynb\)")


def notebook(source: str) -> dict[str, Any]:
    """The notebook of a source in percent format."""
    _, *parts = _CELL.split(source)
    cells: list[dict[str, Any]] = []
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE) if kind else text
        cell = {"id": f"cell-{len(cells)}", "metadata": {}, "source": text.strip().splitlines(keepends=True)}
        code = {} if kind else {"execution_count": None, "outputs": []}
        cells.append({"cell_type": "markdown" if kind else "code", **cell, **code})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def executed(content: dict[str, Any]) -> dict[str, Any]:
    """The notebook with its outputs."""
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    # The kernel runs in the folder and finds its sockets there only by an absolute path. Over tcp it would warn.
    with tempfile.TemporaryDirectory() as folder:
        sockets = {"transport": "ipc", "connection_file": str(Path(folder) / "kernel.json")}
        settings = Config({"AsyncKernelManager": sockets if os.name == "posix" else {}})
        options = {"timeout": 300, "resources": {"metadata": {"path": folder}}}
        return NotebookClient(nbformat.reads(json.dumps(content), 4), config=settings, **options).execute()


def page(content: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    heading = ""
    for cell in content["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            heading = ([heading, *re.findall(r"^#+ (.*)", text, re.MULTILINE)])[-1]
            parts.append(_LINK.sub(r"(\g<path>.md)", text))
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}-{len(pictures)}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![{heading}]({file})")
            elif "text" in output:
                parts.append("```text\n" + "".join(output["text"]).rstrip() + "\n```")
    head, *rest = parts
    download = f"[Download as a notebook]({name}.ipynb){{ download }}"
    return "\n\n".join([head, download, *rest]) + "\n", pictures


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages, and what they show."""
    from mkdocs.structure.files import File

    for path in sorted(TUTORIALS.glob("*.ipynb")):
        content = json.loads(path.read_text(encoding="utf-8"))
        text, pictures = page(executed(content) if os.environ.get("NOTEBOOKS") == "run" else content, path.stem)
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=picture))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links of other pages to notebooks lead to their pages."""
    inside = page.file.src_uri.startswith("tutorials/")
    return markdown if inside else _LINK.sub(r"(\g<path>.md)", markdown)


def main() -> None:
    """Write the notebooks."""
    for source in sorted((TUTORIALS / "src").glob("*.py")):
        text = json.dumps(notebook(source.read_text(encoding="utf-8")), indent=1, ensure_ascii=False)
        (TUTORIALS / f"{source.stem}.ipynb").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
