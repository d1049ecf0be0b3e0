"""What MkDocs does besides: it runs pages and shows what they print and draw, and takes in files outside ``docs/``.

README.md is the front page. Pages may link to any file of the repository by its relative path, as in a checkout: such
files become pages if they are Markdown, and downloads if not. The pages in ``EXECUTED`` are run, in two processes at a
time, and can be downloaded as notebooks.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads this file by its path

from execution import ROOT, Output, PageError, blocks_of, outputs_of
from notebooks import notebook

EXECUTED = ("start.md", "tutorials/*.md")
PROCESSES = 2
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")
FENCED = re.compile(r"^```.*?^```$", re.S | re.M)
# Pages of the site that are outside docs/ and that the navigation names; links lead to others.
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")

_outputs: dict[str, list[Output]] = {}
_home: dict[str, str] = {}  # paths in the repository by paths in the site, of pages outside docs/


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the files outside docs/, and what the executed pages draw."""
    for name in TOP:
        _take_in(name, files, config)
    for file in [*files.documentation_pages()]:
        if file.src_uri not in _home:
            _take_in_links(f"docs/{file.src_uri}", file.content_string, files, config)
    _execute([file for file in files.documentation_pages() if _is_executed(file)], files, config)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the outputs of the blocks, make links relative to the place in the site, and give code its width."""
    here = page.file.src_uri
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # it has no other pages beside it, and lines of code need the width
    if here in _outputs:
        markdown = _with_outputs(markdown, here, _outputs[here])
    repository = _home.get(here, f"docs/{here}")

    def moved(link: re.Match[str]) -> str:
        target = _target(repository, link["target"])
        if not (ROOT / target).exists():
            return link[0]  # made for the site, or missing, which MkDocs says
        return os.path.relpath(_place(target), PurePosixPath(here).parent) + (link["anchor"] or "")

    markdown = re.sub(r"^( *)```console", r"\1```sh", markdown, flags=re.M)  # coloured like other commands
    return _outside_blocks(markdown, lambda text: LINK.sub(moved, text))


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Name the search dialog for readers of screens, which the theme does not."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def _is_executed(file: File) -> bool:
    return any(PurePosixPath(file.src_uri).match(each) for each in EXECUTED) and bool(blocks_of(file.content_string))


def _execute(pages: list[File], files: Files, config: MkDocsConfig) -> None:
    def run(file: File) -> list[Output]:
        return outputs_of(Path(str(file.abs_src_path)))

    with ThreadPoolExecutor(PROCESSES) as pool:
        running = {file: pool.submit(run, file) for file in pages}
    for file, future in running.items():
        try:
            outputs = future.result()
        except PageError as error:
            raise PluginError(str(error)) from None
        _outputs[file.src_uri] = outputs
        stem = file.src_uri.removesuffix(".md")
        for number, figure in _numbered(outputs):
            files.append(File.generated(config, f"{stem}/figure-{number}.png", content=figure))
        files.append(File.generated(config, f"{stem}.ipynb", content=notebook(file.content_string, outputs)))


def _numbered(outputs: list[Output]) -> list[tuple[int, bytes]]:
    """All figures of a page, counted from 1."""
    return [*enumerate((figure for output in outputs for figure in output.figures), 1)]


def _with_outputs(markdown: str, here: str, outputs: list[Output]) -> str:
    stem = PurePosixPath(here).stem
    parts, at, number = [], 0, 0
    for block, output in zip(blocks_of(markdown), outputs, strict=True):
        parts.append(markdown[at : block.end])
        if output.text.strip():
            parts.append(f'\n\n```text {{ .output title="Output" }}\n{output.text.rstrip()}\n```')
        for description in output.descriptions:
            number += 1
            words = re.sub(r"([\[\]*_])", r"\\\1", description)
            parts.append(f"\n\n![{words}]({stem}/figure-{number}.png)")
        at = block.end
    title, _, rest = ("".join(parts) + markdown[at:]).partition("\n")
    return f"{title}\n\n[Download this page as a notebook]({stem}.ipynb){{ .notebook }}\n{rest}"


def _outside_blocks(markdown: str, change: Any) -> str:
    """The text with what is not in fenced blocks changed."""
    parts, at = [], 0
    for block in FENCED.finditer(markdown):
        parts += [change(markdown[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, change(markdown[at:])])


def _target(repository: str, link: str) -> str:
    """The path in the repository to which a link of a file leads."""
    return os.path.normpath(PurePosixPath(repository).parent / link)


def _place(repository: str) -> str:
    """The path in the site of a file of the repository."""
    if repository == "README.md":
        return "index.md"
    return repository.removeprefix("docs/")


def _take_in(name: str, files: Files, config: MkDocsConfig) -> None:
    """Add a file of the repository and, if it is a page, those to which it links."""
    place = _place(name)
    if name.startswith(("docs/", "..")) or files.get_file_from_path(place) is not None:
        return
    path = ROOT / name
    if not path.is_file():
        return  # MkDocs says which link leads nowhere
    if path.suffix != ".md":
        files.append(File.generated(config, place, abs_src_path=str(path)))
        return
    text = path.read_text()
    _home[place] = name
    files.append(File.generated(config, place, content=text))
    _take_in_links(name, text, files, config)


def _take_in_links(name: str, text: str, files: Files, config: MkDocsConfig) -> None:
    for link in LINK.finditer(FENCED.sub("", text)):
        _take_in(_target(name, link["target"]), files, config)
