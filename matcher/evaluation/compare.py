"""Compare methods on one pair of images: what they find, how right it is, what it costs."""

from __future__ import annotations

import io
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from matcher import images, storage
from matcher.evaluation import metrics
from matcher.evaluation.environment import PeakMemory
from matcher.evaluation.scoring import score
from matcher.evaluation.session import Described, Method, describe, frame_of, match_described
from matcher.evaluation.settings import Settings
from matcher.evaluation.truth import reprojection_errors
from matcher.explore.plots import draw_matches
from matcher.geometry import fitting
from matcher.types import Floats, Homography, Mask, Matches, Truth, TwoView

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Comparison:
    """One method on the pair.

    Attributes:
        method: Its label.
        matches: In pixels of the images given; empty where the method failed.
        inliers: (N,) bool, agreeing with one model of the kind of the truth; with a fundamental
            matrix where there is no truth.
        errors: (N,) float32 distance of each match from the truth, pixels; None without truth.
        reason: "ok", why there is no model, or the message of the method's failure.
        model_error: Mean corner error in pixels or pose error in degrees of the model; None
            without such a truth.
        describe_seconds: Median time to describe both images, warm.
        match_seconds: Median time to match them, warm.
        peak_mib: Largest growth of resident memory in the first run, which also loads what the
            method loads late; 0 where the system does not tell.
        picture: Where the picture is, or None.
    """

    method: str
    matches: Matches
    inliers: Mask
    errors: Floats | None
    reason: str
    model_error: float | None
    describe_seconds: float
    match_seconds: float
    peak_mib: float
    picture: Path | None = None

    def precision(self, pixels: float) -> float | None:
        """Share of the matches within some pixels of the truth; None without truth."""
        if self.errors is None:
            return None
        return float(metrics.precision(self.errors, [pixels])[0])


@dataclass(frozen=True, eq=False)
class _Run:
    """What a method found, and at what cost."""

    described: tuple[Described, Described]
    matches: Matches
    describe_seconds: float
    match_seconds: float
    peak_mib: float


def compare(
    image0: object,
    image1: object,
    methods: Mapping[str, Method],
    truth: Truth | None = None,
    *,
    settings: Settings = Settings(long_side=None),  # noqa: B008  frozen
    out: str | Path | None = None,
) -> list[Comparison]:
    """Run methods on a pair, each once to warm up and three times for the clock.

    Args:
        image0: A path, PIL image, array or tensor.
        image1: Likewise.
        methods: By label: methods, or functions of two images.
        truth: In pixels of the two images.
        settings: Size at which to match (as they are, by default) and how to fit. Refinement is
            the method's own affair here.
        out: Folder for `matches.npz`, with the matches of all methods as LABEL/points0 and so on,
            and a picture a method.

    Returns:
        One comparison a method, in their order; a method that raises has the reason and no matches.

    Raises:
        FileNotFoundError: There is no such image.
        ValueError: An image cannot be read, or there are no methods.
    """
    if not methods:
        raise ValueError("no methods to compare")
    pictures = images.read(image0), images.read(image1)
    found = [
        _compare_one(label, method, pictures, truth, settings) for label, method in methods.items()
    ]
    if out is None:
        return found
    _save(found, Path(out) / "matches.npz")
    return [_drawn(each, image0, image1, Path(out)) for each in found]


def _compare_one(
    label: str,
    method: Method,
    pictures: tuple[Any, Any],
    truth: Truth | None,
    settings: Settings,
) -> Comparison:
    """Run one method; whatever it raises becomes its reason."""
    try:
        run = _run(method, pictures, settings)
    except Exception as error:  # the other methods go on
        none, nobody = Matches.empty(), np.zeros(0, np.bool_)
        reason = f"{type(error).__name__}: {error}"
        return Comparison(label, none, nobody, None, reason, None, 0.0, 0.0, 0.0)
    frame = frame_of(run.described)
    matches = frame.to_original(run.matches)
    inliers, reason = _agreeing(matches, truth, settings)
    scored, _ = score(run.matches, truth, frame, settings)
    errors = None if truth is None else reprojection_errors(matches, truth)
    return Comparison(
        label,
        matches,
        inliers,
        None if errors is None else errors.astype(np.float32),
        reason,
        scored.errors[0][0] if scored.errors else None,
        run.describe_seconds,
        run.match_seconds,
        run.peak_mib,
    )


def _run(method: Method, pictures: tuple[Any, Any], settings: Settings) -> _Run:
    def describe_both() -> tuple[Described, Described]:
        return (
            describe(method, pictures[0], settings),
            describe(method, pictures[1], settings),
        )

    with PeakMemory() as peak:
        match_described(method, *describe_both())
    described, describing = _timed(describe_both)
    matches, matching = _timed(lambda: match_described(method, *described))
    return _Run(described, matches, describing, matching, peak.mib)


def _timed(work: Callable[[], Result], repeats: int = 3) -> tuple[Result, float]:
    """Return a result and the median time."""
    seconds, results = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        results = [work()]
        seconds.append(time.perf_counter() - start)
    return results[0], statistics.median(seconds)


def _agreeing(matches: Matches, truth: Truth | None, settings: Settings) -> tuple[Mask, str]:
    """Fit the model that the truth is of, or a fundamental matrix."""
    points = matches.points0, matches.points1
    fit: fitting.Fit[Any]
    if isinstance(truth, Homography):
        fit = fitting.fit_homography(*points, settings.estimator)
    elif isinstance(truth, TwoView):
        fit = fitting.fit_pose(*points, truth.intrinsics0, truth.intrinsics1, settings.estimator)
    else:
        fit = fitting.fit_fundamental(*points, settings.estimator)
    return fit.inliers, str(fit.reason)


def _save(found: list[Comparison], path: Path) -> None:
    """Write the matches of all methods into one file."""
    arrays: dict[str, Any] = {
        f"{each.method}/{name}": value
        for each in found
        for name, value in (*vars(each.matches).items(), ("inliers", each.inliers))
        if value is not None
    }
    binary = io.BytesIO()
    np.savez(binary, **arrays)
    storage.write(path, binary.getvalue())


def _drawn(found: Comparison, image0: object, image1: object, folder: Path) -> Comparison:
    """Draw the matches, in the colours of their errors or of their agreement."""
    name = re.sub(r"[^\w.-]+", "-", found.method).strip("-") or "method"
    right = "" if found.errors is None else f", {found.precision(3):.0%} within 3 px"
    picture = draw_matches(
        image0,
        image1,
        found.matches,
        folder / f"{name}.png",
        inliers=found.inliers,
        errors=found.errors,
        title=f"{found.method}: {len(found.matches)} matches, {found.inliers.sum()} inliers{right}",
    )
    return replace(found, picture=picture)
