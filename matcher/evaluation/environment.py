"""What an evaluation ran on: enough to run it again, and to see why two runs differ."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import matcher

_PACKAGES = (
    "numpy",
    "scipy",
    "torch",
    "poselib",
    "pillow",
    "kornia",
    "opencv-python",
    "opencv-python-headless",
)
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Environment:
    """Versions, code and machine of a run.

    Attributes:
        versions: Of the packages that decide results, of those installed, and of Python.
        code: Start of the sha256 of this package's sources: the same code gives the same.
        commit: Of the checkout, "+" behind it where files differ from it; empty in a wheel.
        machine: Processor architecture and operating system.
        devices: CPU threads, and the name of the GPU where PyTorch has one.
    """

    versions: dict[str, str]
    code: str
    commit: str
    machine: str
    devices: str

    @classmethod
    def here(cls) -> Environment:
        """Describe this process."""
        return cls(
            _versions(), _code(), _commit(), f"{platform.machine()} {sys.platform}", _devices()
        )


class PeakMemory:
    """Measure by how much the resident memory of the process grows at most inside a `with`.

    `mib` is 0 where the system does not tell: only Linux lets a process reset its peak. Memory that
    an earlier step kept and this one uses again is not counted.
    """

    mib: float = 0.0
    _before: int | None = None

    def __enter__(self) -> PeakMemory:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
            self._before = _kib("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self.mib = max(0.0, (_kib("VmHWM") - self._before) / 1024)


def _kib(name: str) -> int:
    """Read one line of the process's status."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no {name}")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "tiepoint": matcher.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _code() -> str:
    digest = hashlib.sha256()
    folder = Path(matcher.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _commit() -> str:
    """Ask git, where the package lies in a checkout of its own."""
    root = Path(matcher.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _devices() -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        return f"{os.cpu_count()} CPU threads"
    threads = f"{torch.get_num_threads()} CPU threads"
    return f"{threads}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else threads
