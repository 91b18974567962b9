"""What a user gets: a package that imports without torch, a typed wheel, and a README whose commands exist."""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import overlapwatch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
HEAVY = ("torch", "numpy", "rich", "msgpack", "nvtx", "pynvml")


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_heavy():
    code = f"import sys, overlapwatch\nprint([m for m in {HEAVY} if m in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize(
    "module",
    ["sources", "accounting", "reports", "commands", "log", "ring", "timeline", "settings"],
)
def test_the_analyzer_never_imports_torch(module):
    code = f"import sys, overlapwatch.{module}\nprint('torch' in sys.modules)"
    assert python(code) == "False"


def test_the_analyzer_works_where_torch_is_not_installed(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    done = subprocess.run(
        [sys.executable, "-m", "overlapwatch", "report", str(tmp_path / "nothing")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_every_public_name_exists():
    for name in overlapwatch.__all__:
        assert getattr(overlapwatch, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'wathc'"):
        overlapwatch.wathc  # noqa: B018 - the access is the test


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed (scripts/test installs it)")
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (path,) = directory.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_is_typed_licensed_and_complete(wheel):
    names = set(wheel.namelist())
    assert "overlapwatch/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(
        name.endswith("licenses/overlapwatch/reports/html/assets/uPlot.LICENSE") for name in names
    )
    assets = {str(p.relative_to(ROOT)) for p in (ROOT / "overlapwatch").rglob("assets/*")}
    assert len(assets) > 10
    assert assets <= names
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "overlapwatch").rglob("*.py")}
    assert modules <= names
    assert not [n for n in names if not n.startswith(("overlapwatch/", "overlapwatch-"))]


def test_the_wheel_forces_torch_on_nobody(wheel):
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    requires = re.findall(r"^Requires-Dist: (.*)$", wheel.read(metadata).decode(), re.MULTILINE)
    torch = [line for line in requires if line.startswith("torch")]
    assert torch
    assert all("extra ==" in line for line in torch)


def test_scripts_that_the_readme_names_exist_and_can_be_run():
    scripts = set(re.findall(r"\b(?:scripts|\.ci)/\w+(?:\.py)?\b", README))
    assert {"scripts/demo", "scripts/test"} <= scripts
    for script in scripts:
        assert os.access(ROOT / script, os.X_OK), script


def test_files_that_the_readme_links_exist():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_commands_that_the_readme_shows_are_known():
    verbs = set(re.findall(r"^\s*(?:\$ )?overlapwatch (\w+)", README, re.MULTILINE))
    assert "report" in verbs
    for verb in verbs:
        done = subprocess.run(
            [sys.executable, "-m", "overlapwatch", verb, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr


def test_settings_that_the_readme_names_exist():
    from overlapwatch.settings import describe

    known = {variable for variable, _, _ in describe()}
    named = set(re.findall(r"\bOVERLAPWATCH_[A-Z_]+\b", README))
    assert named
    assert named <= known
