"""What is installed: names, layers, what an import loads, what the wheel and the sdist carry."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import matcher
from matcher import assets, extras, methods, shapes

PACKAGE = Path(matcher.__file__).parent
ROOT = PACKAGE.parent
CHECKOUT = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="needs the checkout that the package came from"
)

# A module imports only from its own row and the rows above it; what no row names is of row 1.
ROWS = (
    {"types", "shapes", "assets", "extras"},
    set(),
    {"correlation", "refinement", "templates", "methods", "matching", "instances", "growth"},
    {
        "benchmark",
        "datasets",
        "synthesis",
        "evaluation",
        "mining",
        "sfm",
        "export",
        "explore",
        "doctor",
        "licences",
        "sbom",
        "tracking",
    },
    {"training"},
    {"terminal", "options", "commands", "cli", "__main__"},
)


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def row_of(module):
    part = module.split(".")[1]
    return next((row for row, names in enumerate(ROWS) if part in names), 1)


def imported_by(path):
    known = {name_of(module) for module in modules()}
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            deeper = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (deeper & known) or {node.module}
    return {name for name in found if name.startswith("matcher.")}


def run_python(code, *arguments, cwd=None):
    command = [sys.executable, *arguments, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


@CHECKOUT
@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_module_imports_only_from_its_row_and_those_above(path):
    name = name_of(path)
    if name == "matcher":
        return

    below = {other for other in imported_by(path) if row_of(other) > row_of(name)}

    assert not below


@CHECKOUT
def test_no_module_imports_itself_on_a_detour():
    graph = {name_of(path): imported_by(path) for path in modules() if name_of(path) != "matcher"}
    done: set[str] = set()

    def visit(name, way):
        assert name not in way, " -> ".join([*way, name])
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, [*way, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_public_names_are_sorted_and_all_there():
    assert matcher.__all__ == sorted(matcher.__all__)
    assert dir(matcher) == [*sorted([*matcher.__all__, "__version__"])]
    for name in matcher.__all__:
        assert getattr(matcher, name).__doc__
    with pytest.raises(AttributeError, match="module 'matcher' has no attribute 'nothing'"):
        matcher.nothing  # noqa: B018


# PKG-03
def test_import_and_listing_need_neither_torch_nor_optional_packages():
    code = "import sys, matcher; matcher.list_methods(); print(sorted(sys.modules))"

    loaded = run_python(code, cwd=ROOT).stdout

    for package in ("torch", "scipy", "matplotlib", *extras.EXTRA_OF):
        assert f"'{package}'" not in loaded
    assert "'matcher'" in loaded


# PKG-01, PKG-03
def test_all_modules_import_where_no_optional_package_is_installed():
    blocked = f"""
import sys, pkgutil, importlib
for name in {sorted(extras.EXTRA_OF)!r}:
    sys.modules[name] = None
import matcher
from matcher import doctor, extras
for found in pkgutil.walk_packages(matcher.__path__, "matcher."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
try:
    extras.require("kornia", "method 'x'")
except ImportError as error:
    print(error)
print([f.found for f in doctor.diagnose() if f.subject == "OpenCV"][0])
"""

    result = run_python(blocked, cwd=ROOT)

    assert result.returncode == 0, result.stderr
    assert "method 'x' needs kornia: pip install 'tiepoint[baselines]'" in result.stdout
    assert "import cv2 fails" in result.stdout or "not installed" in result.stdout


# PKG-03
def test_without_torch_methods_are_listed_and_their_use_says_what_is_missing():
    blocked = """
import sys
sys.modules["torch"] = None
import matcher
from matcher import cli
cli.run(["methods"])
try:
    matcher.create("loftr")
except ImportError as error:
    print(error)
cli.run(["models", "check"])
sys.exit(cli.run(["doctor"]))
"""

    result = run_python(blocked, cwd=ROOT)

    assert result.returncode == 1
    assert "\nloftr " in result.stdout
    assert "needs torch, which `pip install tiepoint` brings" in result.stdout
    assert "torch" in result.stderr
    assert "`pip install tiepoint` brings it" in result.stderr
    assert "unknown, as torch fails: import of torch halted" in result.stdout
    assert result.stdout.endswith("\n1 problem\n")


def test_an_optional_package_that_fails_inside_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "cv2.py").write_text("import a_package_that_is_nowhere")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cv2", raising=False)

    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_nowhere"):
        extras.require("cv2", "this test")
    assert extras.install_command("obscure") == "pip install obscure"


def test_methods_that_are_not_there_are_named_with_those_that_are():
    with pytest.raises(ValueError, match=r"no method 'nc'; there are .*loftr.*superglue"):
        methods.build("nc")


def test_folders_that_are_not_there_are_named():
    with pytest.raises(FileNotFoundError, match="no folder 'nothing': looked in .*_assets"):
        assets.folder("nothing")


def test_shapes_are_checked_in_the_letters_of_the_docstrings():
    class Shaped:
        shape = (2, 1, 64, 80)

    sizes = shapes.check_shape("image0", Shaped(), "B 1 H W")

    assert sizes == {"B": 2, "H": 64, "W": 80}
    assert shapes.check_shape("again", Shaped(), "B 1 H W", sizes) == sizes
    with pytest.raises(ValueError, match=r"^image1 must be \(B 1 H W\) with B=3, not \(2, 1, 64,"):
        shapes.check_shape("image1", Shaped(), "B 1 H W", {"B": 3})
    with pytest.raises(ValueError, match=r"^image1 must be \(B H W\), not \(2, 1, 64, 80\)"):
        shapes.check_shape("image1", Shaped(), "B H W")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist, and the wheel from nothing but the sdist."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@CHECKOUT
def test_the_wheel_and_the_sdist_carry_weights_pairs_and_licence(built):
    wheel = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        sdist = {name.partition("/")[2] for name in archive.getnames()}
    shipped = [
        path.relative_to(ROOT).as_posix()
        for folder in ("models", "data")
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]

    assert {f"matcher/_assets/{name}" for name in shipped} <= set(wheel)
    assert set(shipped) <= sdist
    assert any(name.endswith("weights.safetensors") for name in wheel)
    assert {"matcher/py.typed", "matcher/cli.py"} <= set(wheel)
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
    assert {"LICENSE", "README.md", "constraints.txt", "pyproject.toml", "scripts/demo"} <= sdist
    assert {name.split("/")[0] for name in wheel} == {"matcher", "tiepoint-0.1.0.dist-info"}


@CHECKOUT
def test_the_wheel_works_elsewhere_without_the_source(built, tmp_path):
    target, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(target)]
    wheel = str(next(built.glob("*.whl")))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, wheel], check=True)
    code = f"""
import sys
sys.path.insert(0, {str(target)!r})
from matcher import cli
assert cli.__file__.startswith({str(target)!r})
sys.exit(cli.run(["evaluate", "sample", "--methods", "ncc", "--resize", "240"]))
"""

    result = run_python(code, "-I", cwd=elsewhere)

    assert result.returncode == 0, result.stderr
    assert "13 pairs, 1 methods, 0 failed" in result.stdout
