"""Look at an installation: what is there, what clashes, and whether a method works."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from dataclasses import dataclass

import numpy as np

from matcher import __version__, datasets, images, matching
from matcher.extras import EXTRA_OF, install_command
from matcher.registry import registry
from matcher.types import Matcher

# All of them install one folder, cv2: the last one wins, and removing it breaks the others.
OPENCV_VARIANTS = (
    "opencv-python",
    "opencv-python-headless",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)
_CORE = (
    "numpy",
    "scipy",
    "torch",
    "pillow",
    "poselib",
    "safetensors",
    "matplotlib",
    "typer",
    "rich",
)


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis: its subject, what was found, and whether that is a problem."""

    subject: str
    found: str
    problem: bool = False


def diagnose() -> list[Finding]:
    """Collect versions, OpenCV variants, devices and weights; downloads nothing.

    Where torch cannot be imported, devices and weights are unknown, and that is the finding.
    """
    try:
        of_torch = [_devices(), *_weights()]
    except ImportError as error:
        of_torch = [Finding("devices", f"unknown, as torch fails: {error}", problem=True)]
    return [*_versions(), _opencv(), *of_torch]


@dataclass(frozen=True)
class SelfTest:
    """How many matches of an image with itself stay in place.

    Attributes:
        matches: How many were found.
        in_place: How many of them are within one pixel of their own place.
        passed: At least 20 matches, and 95 % of them in place.
    """

    matches: int
    in_place: int

    @property
    def passed(self) -> bool:
        """Whether the method works: weights that were read wrongly fail here at once."""
        return self.matches >= 20 and self.in_place >= 0.95 * self.matches


def self_test(method: Matcher, image: object | None = None) -> SelfTest:
    """Match an image with itself, by default the first one of the sample data."""
    chosen = datasets.sample_pairs()[0].image0 if image is None else image
    picture = images.read(chosen)
    found = matching.match(method, picture, picture)
    moved = np.linalg.norm(found.points1 - found.points0, axis=1)
    return SelfTest(len(found), int((moved <= 1).sum()))


def _versions() -> list[Finding]:
    findings = [Finding("python", f"{platform.python_version()} on {platform.platform()}")]
    findings.append(Finding("tiepoint", __version__))
    for package in _CORE:
        version = _version(package)
        findings.append(Finding(package, version or "missing", problem=version is None))
    for package in sorted(set(EXTRA_OF) - {"cv2"}):
        words = _version(package) or f"not installed: {install_command(package)}"
        findings.append(Finding(package, words))
    return findings


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _opencv() -> Finding:
    """List the distributions that bring cv2, and whether it can be imported."""
    installed = [f"{name} {_version(name)}" for name in OPENCV_VARIANTS if _version(name)]
    listed = ", ".join(installed) or "no distribution"
    try:
        cv2 = importlib.import_module("cv2")
    except ImportError as error:
        if not installed:
            return Finding("OpenCV", f"not installed: {install_command('cv2')}")
        return Finding("OpenCV", f"{listed}; but import cv2 fails: {error}", problem=True)
    clash = (
        "; several share one folder: uninstall all, then install one" if len(installed) > 1 else ""
    )
    return Finding("OpenCV", f"{listed}; cv2 {cv2.__version__}{clash}", problem=bool(clash))


def _devices() -> Finding:
    import torch  # noqa: PLC0415  may be missing: that is for the doctor to say

    found = [f"cpu ({torch.get_num_threads()} threads)"]
    found += [
        f"cuda:{n} ({torch.cuda.get_device_name(n)})" for n in range(torch.cuda.device_count())
    ]
    return Finding("devices", ", ".join(found + ["mps"] * torch.backends.mps.is_available()))


def _weights() -> list[Finding]:
    from matcher import weights  # noqa: PLC0415  imports torch

    findings = []
    for name in sorted(registry()):
        status = weights.status(name)
        findings.append(Finding(f"weights {name}", status, problem=status == "damaged"))
    return findings
