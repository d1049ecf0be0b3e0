"""A release: one version everywhere, metadata that an index can show, and distributions that are whole."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import trove_classifiers
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import sdebnn

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
README = (ROOT / "README.md").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
# An inline link or picture of Markdown, or of HTML inside it.
LINK = re.compile(r'(?:\]\(|src="|href=")([^)"\s]+)')
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
MAX_WHEEL_BYTES = 2**20
# Tests of files outside of the package, which the sdist must bring along.
TESTS_OF_FILES = ("test_docs.py", "test_project.py", "test_readme.py", "test_release.py", "test_artifacts_committed.py")


def sections():
    """The versions of the changelog with their dates and texts, in order."""
    found = re.split(r"^## \[(.+?)\](?: - (\S+))?$", CHANGELOG, flags=re.M)[1:]
    return list(zip(found[::3], found[1::3], found[2::3], strict=True))


@pytest.fixture(scope="module")
def metadata():
    """The metadata as the build writes them."""
    return ProjectMetadata(str(ROOT), PluginManager()).core


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The folder of a wheel and of an sdist."""
    folder = tmp_path_factory.mktemp("distributions")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_the_version_is_the_same_everywhere(metadata):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (_, _, unreleased), (version, date, _) = sections()[:2]
    assert version == citation["version"] == metadata.version == sdebnn.__version__
    assert date == citation["date-released"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
    assert CHANGELOG.count("## [Unreleased]") == 1
    assert sections()[0][0] == "Unreleased", unreleased
    if (ROOT / "hopper").is_dir():  # its kernels subclass a contract of this version
        needs = tomllib.loads((ROOT / "hopper" / "pyproject.toml").read_text())["project"]["dependencies"]
        assert f"sdebnn>={sdebnn.__version__}" in needs


def test_the_changelog_has_the_form_of_keep_a_changelog():
    versions = [tuple(map(int, version.split("."))) for version, _, _ in sections()[1:]]
    assert versions == sorted(versions, reverse=True)
    for version, _, text in sections():
        kinds = re.findall(r"^### (.+)$", text, re.M)
        assert set(kinds) <= KINDS, version
        assert len(set(kinds)) == len(kinds), version


def test_the_readme_of_an_index_has_only_absolute_links(metadata):
    """They lead to the same files, in the repository and at the tag of this version."""
    home, *others = metadata.urls.values()
    assert all(url.startswith(home) for url in others)
    prefixes = tuple(f"{home}/{kind}/v{sdebnn.__version__}/" for kind in ("blob", "raw"))
    shown, ours = LINK.findall(metadata.readme), LINK.findall(README)
    assert len(shown) == len(ours) > 10
    for there, here in zip(shown, ours, strict=True):
        if re.match(r"https?:|#", here):
            assert there == here
        else:
            assert there in [prefix + here for prefix in prefixes]
            assert there.startswith(prefixes[1]) == here.endswith((".png", ".svg"))
    assert not re.search(r"^\[[^\]]+\]:", README, re.M), "references are not made absolute: write inline links"


def test_the_readme_of_an_index_is_otherwise_the_same(metadata):
    text, _, last = metadata.readme.rpartition("\nRepository: ")
    assert LINK.sub("", text) == LINK.sub("", README)
    assert last == f"<{next(iter(metadata.urls.values()))}>\n"
    assert metadata.readme_content_type == "text/markdown"


def test_an_index_renders_the_readme(metadata):
    pytest.importorskip("comrak")  # without it, the renderer of twine renders no Markdown, and twine checks none
    markdown = pytest.importorskip("readme_renderer.markdown")
    page = markdown.render(metadata.readme)
    assert page is not None
    links = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_classifiers_are_known_and_name_the_pythons_that_are_tested(metadata):
    assert set(metadata.classifiers) <= trove_classifiers.classifiers
    named = [name.rpartition(" ")[2] for name in metadata.classifiers if re.search(r"Python :: 3\.\d+$", name)]
    assert metadata.requires_python == f">={named[0]}"
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            if "strategy" in job:
                assert job["strategy"]["matrix"]["python"] == named, f"{path.name}: {name}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_that_exist_and_actions_of_a_major_version(path):
    workflow = yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert workflow["permissions"] == {"contents": "read"}
    called = set()
    for job in workflow["jobs"].values():
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"])
            called |= set(re.findall(r"\bmake (?:-C \S+ )?(\w+)", step.get("run", "")))
    assert called <= targets
    assert called >= ({"check", "test", "slow"} if path.stem == "test" else {"test"})


def test_only_the_job_that_publishes_may_ask_for_a_token():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    asking = [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert asking == ["publish"]
    assert jobs["publish"]["needs"] == "test"
    assert jobs["test"]["needs"] == "build"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_of_issues_is_whole(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in fields}) == len(fields)
    assert all(part["attributes"]["label"] for part in fields)
    assert any(part.get("validations", {}).get("required") for part in fields)
    for name in re.findall(r"\b[\w/]+\.md\b", path.read_text()):
        assert (ROOT / name).exists(), name


def test_bugs_are_reported_with_the_output_of_info():
    assert [path.stem for path in FORMS] == ["bug", "idea", "question"]
    bug = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    field = next(part for part in bug["body"] if "sdebnn info" in part["attributes"].get("label", ""))
    assert field["validations"]["required"]


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_files_that_a_page_of_the_project_names_exist(name):
    for file in re.findall(r"`(\w+/[\w/]+\.(?:md|py))`", (ROOT / name).read_text()):
        assert (ROOT / file).exists(), file


def test_the_limits_of_the_server_are_those_of_the_page_on_security():
    pytest.importorskip("starlette")
    from sdebnn.serve import Limits

    limits, text = Limits(), (ROOT / "SECURITY.md").read_text()
    values = {
        "rows of a request": f"{limits.rows}",
        "bytes of a request": f"{limits.bytes // 2**20} MiB, uncompressed",
        "seconds to receive a request": f"{limits.seconds:g}",
        "requests that are not answered yet": f"{limits.requests}",
        "bytes of all these": f"{limits.waiting_bytes // limits.bytes} times those of one request",
    }
    for name, value in values.items():
        assert f"| {name} | {value} |" in text


def test_the_wheel_holds_the_package_alone(distributions):
    path = next(distributions.glob("*.whl"))
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        head = wheel.read(f"sdebnn-{sdebnn.__version__}.dist-info/METADATA").decode()
    code = {name for name in names if name.startswith("sdebnn/")}
    assert {name.partition("/")[0] for name in names - code} == {f"sdebnn-{sdebnn.__version__}.dist-info"}
    assert code == {str(file.relative_to(ROOT)) for file in (ROOT / "sdebnn").rglob("*.*") if file.suffix != ".pyc"}
    assert "sdebnn/py.typed" in code
    assert not any("test" in name for name in code)
    assert path.stat().st_size < MAX_WHEEL_BYTES
    assert f"\nVersion: {sdebnn.__version__}\n" in head
    assert "\nLicense-Expression: Apache-2.0\n" in head


def test_the_sdist_holds_every_file_of_the_repository_that_tests_read(distributions):
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:  # an sdist that was unpacked
        wanted = {str(path.relative_to(ROOT)) for path in ROOT.glob(".github/*/*.yml")}
    else:
        wanted = {name for name in listed.stdout.splitlines() if not name.startswith(("hopper/", "results/", ".ci/"))}
    assert wanted - shipped == set()
    assert not any(name.startswith(("hopper/", "results/")) or "__pycache__" in name for name in shipped)


@pytest.mark.slow
def test_an_sdist_passes_its_own_tests_of_files(distributions, tmp_path):
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have none
        archive.extractall(tmp_path)
    home = tmp_path / f"sdebnn-{sdebnn.__version__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "not slow", *(f"tests/{name}" for name in TESTS_OF_FILES)],
        cwd=home, env={**os.environ, "PYTHONPATH": str(home)}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
