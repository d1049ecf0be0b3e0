"""The pages of the documentation: their blocks run, and the site that they make is whole."""

import ast
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from browser import axe_violations, dumped, in_browser

from sdebnn import cli

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = [page for page in sorted((DOCS / "tutorials").glob("*.md")) if page.name != "index.md"]
MAIN = ("index.html", "start.html", "idea.html", "tutorials/regression.html", "reference/index.html")
# Blocks of these languages are run; `console` has commands to read, `text` what a program said.
LANGUAGES = {"python", "sh", "console", "text"}
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.S | re.M)
# Its blocks read a run that is in the repository: test_docs.py runs them there.
ELSEWHERE = {"uncertainty.md"}


@pytest.fixture(scope="module")
def execution():
    spec = importlib.util.spec_from_file_location("execution", DOCS / "building" / "execution.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name(page):
    return str(page.relative_to(DOCS))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_are_run_or_say_that_they_are_not(page):
    found = FENCE.findall(page.read_text())
    assert {language for language, _ in found} <= LANGUAGES
    for language, code in found:
        if language == "python":
            ast.parse(code)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_commands_have_the_options_that_are_shown(page):
    commands = {command.name or command.callback.__name__: command.callback for command in cli.app.registered_commands}
    for language, code in FENCE.findall(page.read_text()):
        if language not in ("console", "sh"):
            continue
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words or words[0] != "sdebnn" or words[1] not in commands:
                continue
            known = {f"--{each.replace('_', '-')}" for each in inspect.signature(commands[words[1]]).parameters}
            known |= {f"--no-{each.removeprefix('--')}" for each in known} | {"--help", "--debug"}
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known, line


def test_blocks_share_a_process_and_their_outputs_are_kept(execution, tmp_path, monkeypatch):
    monkeypatch.setattr(execution, "CACHE", tmp_path / "cache")
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n```python\nprint('one')\n```\n\n```sh\necho two > file; cat file\n```\n\n```python\n"
        "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\naxes.set_title('three')\n"
        "print(open('file').read().strip())\n```\n\n```text\nnot run\n```\n"
    )
    outputs = execution.outputs_of(page)
    assert [output.text for output in outputs] == ["one\n", "two\n", "two\n"]
    assert [len(output.figures) for output in outputs] == [0, 0, 1]
    assert outputs[2].figures[0].startswith(b"\x89PNG")
    assert outputs[2].descriptions == ["three"]
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text(kept.read_text().replace("one", "changed"))
    assert execution.outputs_of(page)[0].text == "changed\n"
    page.write_text("```python\nprint(1)\nraise ValueError('wrong')\n```\n")
    with pytest.raises(execution.PageError, match=r"page\.md(.|\n)*block 1(.|\n)*ValueError: wrong"):
        execution.outputs_of(page)
    assert not [*(tmp_path / "cache").glob("*.json")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in sorted(DOCS.glob("*.md")) if page.name not in ELSEWHERE | {"start.md"}], ids=name
)
def test_the_blocks_of_a_page_run(page, execution):
    if not execution.blocks_of(page.read_text()):
        pytest.skip("has no blocks")
    execution.outputs_of(page)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it; this runs the tutorials."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_what_the_tutorials_drew(site, execution):
    for page in PAGES:
        assert (site / page.relative_to(DOCS).with_suffix(".html")).exists(), page
    for page in (DOCS / "start.md", *TUTORIALS):
        path = site / page.relative_to(DOCS)
        html, text = path.with_suffix(".html").read_text(), page.read_text()
        notebook = json.loads(path.with_suffix(".ipynb").read_text())
        code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert len(code) == len(execution.blocks_of(text))
        assert f'href="{page.stem}.ipynb"' in html
        figures = [*(path.parent / page.stem).glob("figure-*.png")]
        shown = re.findall(r'<img alt="([^"]+)" src="([^"]*figure-\d+\.png)"', html)
        assert len(shown) == len(figures)
        drawn = [out for cell in notebook["cells"] for out in cell.get("outputs", []) if "data" in out]
        assert len(drawn) == len(figures)
    assert len(TUTORIALS) >= 12
    words = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert any("conformal" in each["text"] for each in words)


@pytest.mark.slow
def test_nothing_in_the_site_is_loaded_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe|link)\b[^>]*?(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert [each for each in loaded if "canonical" not in each] == [], page


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", MAIN)
def test_the_main_pages_pass_the_rules_of_accessibility(site, page, dark):
    path = site / page
    found, _ = axe_violations(path.read_text(), path.parent, dark=dark)
    assert found["passes"] > 10, found
    assert [rule for rule in found["wrong"] if rule[1] in ("serious", "critical")] == []
    shade = sum(map(int, re.findall(r"\d+", found["paper"])[:3]))
    assert (shade < 300) == dark


@in_browser
@pytest.mark.slow
@pytest.mark.parametrize("page", MAIN)
def test_the_main_pages_fit_a_phone(site, page):
    path = site / page
    script = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth];"
    found, _ = dumped(path.read_text(), path.parent, script, width=500)  # the narrowest window of Chromium
    assert found[0] <= found[1]
