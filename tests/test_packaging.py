"""The source distribution and the wheel: they build, hold every file they should, install, and run the demo."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ONLY_IN_GIT = (".gitignore", ".github/", ".ci/")  # files for git hosts and continuous integration


def call(*words: str | Path, cwd: Path, timeout: float = 240) -> str:
    """Run a command without this process's import path; everything it printed."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout


def demo() -> list[str]:
    """The words of the command that `make demo` runs."""
    found = re.search(r"/(homophily compare .*)\n", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert found is not None
    return found[1].split()


@dataclass(frozen=True)
class Built:
    """The files of the checkout, and the distributions that were built from a copy of them."""

    files: set[str]
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """`python -m build` makes the source distribution, and the wheel from the unpacked source distribution."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the list of files comes from git")
    listed = call("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    files = {name for name in listed if (ROOT / name).is_file()}
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, cwd=source)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return Built(files, sdist, wheel)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_the_source_distribution_holds_every_file_of_the_checkout(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    generated = {name for name in held if name in ("PKG-INFO", "setup.cfg") or name.startswith("homophily.egg-info/")}
    assert held - generated == {name for name in built.files if not name.startswith(ONLY_IN_GIT)}


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        held = set(archive.namelist())
    assert {name for name in held if ".dist-info/" not in name} == {
        f for f in built.files if f.startswith("homophily/")
    }
    assert {"homophily/py.typed", "homophily/papers/recipes/panm-table-2.toml"} <= held
    assert [name for name in held if name.endswith(".dist-info/licenses/LICENSE")]


def test_the_metadata_describes_the_package(built: Built) -> None:
    found = metadata(built.wheel)
    version = re.search(r'"(.*)"', (ROOT / "homophily/version.py").read_text(encoding="utf-8").splitlines()[-1])
    assert version is not None
    assert (found["Name"], found["Version"]) == ("homophily", version[1])
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert "federated learning" in found["Keywords"]


def test_an_installed_wheel_runs_the_demo(built: Built, tmp_path: Path) -> None:
    """Two rounds of it, in an environment that borrows only the dependencies from this one."""
    python = tmp_path / "venv/bin/python"
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    call(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", built.wheel, cwd=tmp_path
    )
    site = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    borrowed = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in sorted(borrowed)))
    where = call(python, "-c", "import homophily; print(homophily.__file__)", cwd=tmp_path)
    assert where.strip() == str(site / "homophily/__init__.py")
    command, *words = demo()
    printed = call(tmp_path / "venv/bin" / command, *words, "rounds=2", cwd=tmp_path)
    assert "accuracy, %, 3 seeds" in printed
    assert "panm-table-2" in call(tmp_path / "venv/bin" / command, "reproduce", "--list", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("distribution", ["wheel", "sdist"])
def test_the_demo_runs_in_an_empty_environment(distribution: str, built: Built, tmp_path: Path) -> None:
    """Installs all dependencies from the package index, and needs a network for it."""
    call(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    install = ("-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    call(tmp_path / "venv/bin/python", *install, getattr(built, distribution), cwd=tmp_path, timeout=1500)
    command, *words = demo()
    assert "accuracy, %, 3 seeds" in call(tmp_path / "venv/bin" / command, *words, cwd=tmp_path)
