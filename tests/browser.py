"""A headless Chromium, in which tests open pages."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


def dumped(text, folder, script="", width=1200, dark=False):
    """The page in Chromium after a script has run: what the script returned, and what was said on the console."""
    tail = (
        "<script>(async () => { let found; try { found = await (async () => {" + script + "})(); }"
        " catch (error) { found = {error: String(error)}; }"
        " const place = document.createElement('pre'); place.id = 'found'; place.textContent = JSON.stringify(found);"
        " document.body.append(place); })();</script>"
    )
    path = folder / "tried.html"
    path.write_text(text.replace("</body>", tail + "</body>"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # no page remembers what another chose
        done = subprocess.run(
            [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={profile}", f"--window-size={width},900", "--virtual-time-budget=30000",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr", "--dump-dom",
             path.as_uri()],
            capture_output=True, text=True, timeout=180, check=True,
        )  # fmt: skip
    path.unlink()
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(found[1])), console


def axe_violations(text, folder, dark=False):
    """What axe-core finds wrong with a page: the rule, its impact and an element; and what was said on the console."""
    axe_core_python = pytest.importorskip("axe_core_python")
    axe = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
    script = (
        "const found = await axe.run(); return {paper: getComputedStyle(document.body).backgroundColor, passes:"
        " found.passes.length, wrong: found.violations.map(rule => [rule.id, rule.impact, rule.nodes[0].html.slice(0,"
        " 200)])};"
    )
    return dumped(text.replace("</head>", f"<script>{axe}</script></head>"), folder, script, dark=dark)
