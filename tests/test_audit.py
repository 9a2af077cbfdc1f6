"""The check for known vulnerabilities: it asks where it can, and says so where it cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

AUDIT = Path(__file__).parents[1] / "scripts" / "audit"

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not AUDIT.is_file(), reason="scripts/audit is a script for a shell"
)


def answer(folder, auditor, network):
    """Run the script in a checkout whose tools answer as told: code and what it prints."""
    tools = folder / ".venv" / "bin"
    tools.mkdir(parents=True)
    (folder / "scripts").mkdir()
    shutil.copy(AUDIT, folder / "scripts" / "audit")
    programs = {"python": f"exit {0 if network else 1}"}
    if auditor is not None:
        programs["pip-audit"] = f'echo "asked: $*"; exit {auditor}'
    for name, line in programs.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        [folder / "scripts" / "audit"], env={"PATH": "/usr/bin:/bin"}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.parametrize("found", [0, 1])
def test_the_tested_versions_are_asked_for_and_what_is_found_is_the_code(tmp_path, found):
    code, said = answer(tmp_path, auditor=found, network=True)

    assert code == found
    assert said == "asked: --no-deps --disable-pip --requirement constraints.txt\n"


def test_without_the_tool_it_is_skipped_by_name(tmp_path):
    code, said = answer(tmp_path, auditor=None, network=True)

    assert code == 0
    assert said.startswith("skipped: pip-audit is not installed")


def test_without_a_network_it_is_skipped_by_name(tmp_path):
    code, said = answer(tmp_path, auditor=0, network=False)

    assert code == 0
    assert said.startswith("skipped: pypi.org, which keeps the list of vulnerabilities")
