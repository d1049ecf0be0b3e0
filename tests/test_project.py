"""The house: what may import what, and what the front page promises."""

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import sdebnn

ROOT = Path(__file__).parent.parent
ORDER = [
    "checks", "files", "records", "fingerprints", "devices", "programs", "host_arrays", "meshes", "hosts", "processes",
    "fields", "waves", "convolutions", "metrics", "columns", "likelihoods", "calibration", "outcomes", "data",
    "corruptions", "integrate", "contract", "models", "nn", "baselines", "nets", "description", "prediction",
    "strangeness", "train", "presets", "compare", "estimators", "artifacts", "runs", "tables",
    "forecasters", "shifts", "sweeps", "export", "serve", "plots", "reports", "verify", "cli",
]  # fmt: skip


def imports(path: Path) -> set[str]:
    """The rooms of sdebnn that a file imports from, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("sdebnn.")}
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path.name}: relative imports hide the order")
        elif isinstance(node, ast.ImportFrom) and node.module == "sdebnn":
            found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sdebnn."):
            found.add(node.module.split(".")[1])
    return found


def test_a_file_imports_only_from_rows_above_it():
    for path in (ROOT / "sdebnn").rglob("*.py"):
        place = path.relative_to(ROOT / "sdebnn").parts
        room = place[0].removesuffix(".py")
        if room in ("__init__", "__main__"):  # the doors
            continue
        row = ORDER.index(room)
        inner = {room} if len(place) > 1 else set()
        above = set(ORDER[:row]) | inner
        assert imports(path) <= above, f"{path.name} imports {imports(path) - above} from below its row"


def test_importing_sdebnn_leaves_the_plotting_library_alone_and_jax_as_it_was():
    code = (
        "import jax; before = dict(jax.config.values); import sdebnn, sys;"
        "assert dict(jax.config.values) == before; assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there_and_documented():
    for name in (*sdebnn.__all__, "SDEBNNClassifier", "SDEBNNRegressor", "load", "save"):
        assert name in dir(sdebnn)
        assert getattr(sdebnn, name).__doc__, name


def test_the_changelog_knows_this_version():
    assert f"## [{sdebnn.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_no_page_holds_a_gap_that_was_to_be_filled_in():
    for page in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "hopper").glob("*.md"),
        *(ROOT / "results").rglob("*.md"),
    ]:
        assert not re.search(r"@[A-Z]+@|TODO|FIXME", page.read_text()), page.name


def test_the_core_knows_of_no_other_distribution_and_hopper_enters_by_the_convolutions_alone():
    for path in (ROOT / "sdebnn").rglob("*.py"):
        assert "sdebnn_hopper" not in path.read_text(), path.name
    for path in (ROOT / "hopper" / "sdebnn_hopper").rglob("*.py"):
        assert imports(path) <= {"convolutions"}, path.name


def test_the_distributions_hold_what_their_tests_need_and_nothing_of_hopper(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {"sdebnn"}
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    ours = [path for folder in ("sdebnn", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.*")]
    wanted = {str(path.relative_to(ROOT)) for path in ours if path.suffix in (".py", ".md", ".json")}
    wanted |= {"README.md", "CHANGELOG.md", "Makefile", "requirements.txt", "pyproject.toml"}
    assert wanted - shipped == set()
    assert not any(name.startswith("hopper") for name in shipped)


def test_importing_sdebnn_needs_no_scikit_learn():
    code = (
        "import sys; sys.modules['sklearn'] = None; import sdebnn\n"
        "try:\n    sdebnn.SDEBNNRegressor\n"
        "except ImportError as error:\n    assert \"pip install 'sdebnn[sklearn]'\" in str(error), error\n"
        "else:\n    raise SystemExit('no word')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
