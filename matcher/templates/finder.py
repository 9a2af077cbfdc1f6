"""Find a template in a scene by normalised cross-correlation.

    hits = matcher.find("part.png", "table.png", angles=(-180, 180), threshold=0.8)

Where the template neither turns nor grows, the score of a hit is that of its best whole pixel, and
its place is the peak of the score map, interpolated. Otherwise place, angle and scale are fitted to the
pixels, and the score is that of the fit. Thresholds are absolute, and fine detail must agree as well:
an absent template gives no hit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from matcher import images
from matcher.correlation.kernel import Pixels
from matcher.correlation.tiles import in_threads
from matcher.templates.detail import Detail
from matcher.templates.poses import Pose, Template, make_template, overlap
from matcher.templates.settling import Settled, Settler
from matcher.templates.survey import Pyramid, Ranges, Survey, grey, make_survey
from matcher.types import TemplateHit

_TRIES = 2  # peaks settled for each hit that may be reported
_EXACT = 1e-6  # scores of exact copies may fall this short of 1
_ROUNDING = 1e-4  # more than a score map differs from the exact score


Mode: TypeAlias = Literal["exhaustive", "pyramid", "auto"]
Contrast: TypeAlias = Literal["same", "either"]


@dataclass(frozen=True)
class FindOptions:
    """What to look for.

    Attributes:
        threshold: Least score of a hit, in (0, 1]; exact copies reach 1 up to 1e-6.
        max_hits: Most hits for each template.
        overlap: Largest share (intersection over union) that two hits of a template may have in
            common, as if both had the angle of the better one.
        mode: "exhaustive" scores every pixel of the scene; "pyramid" and "auto" score a smaller
            picture and follow its peaks, where the template keeps enough pixels and contrast on it
            and, for a template as it is, where the peaks are so few that this is faster.
        angles: (from, to) degrees to search, counter-clockwise on the screen; a hit may lie up to
            3 degrees beyond.
        scales: (from, to) sizes in the scene over size of the template; or up to 5 % beyond.
        contrast: "either" also finds negatives; their score is below 0.
        detail: Least correlation of fine detail, in [-1, 1]; -1 asks for none. See
            `matcher.templates.detail`.
    """

    threshold: float = 0.7
    max_hits: int = 100
    overlap: float = 0.3
    mode: Mode = "auto"
    angles: tuple[float, float] = (0.0, 0.0)
    scales: tuple[float, float] = (1.0, 1.0)
    contrast: Contrast = "same"
    detail: float = 0.5

    def __post_init__(self) -> None:
        checks = {
            "threshold must be above 0 and at most 1": 0 < self.threshold <= 1,
            "max_hits must be at least 1": self.max_hits >= 1,
            "overlap must be in [0, 1)": 0 <= self.overlap < 1,
            "mode must be exhaustive, pyramid or auto": self.mode in get_args(Mode),
            "contrast must be same or either": self.contrast in get_args(Contrast),
            "angles must rise": self.angles[0] <= self.angles[1],
            "scales must be above 0 and rise": 0 < self.scales[0] <= self.scales[1],
            "detail must be in [-1, 1]": -1 <= self.detail <= 1,
        }
        for rule, kept in checks.items():
            if not kept:
                raise ValueError(f"{rule}, not {getattr(self, rule.split()[0])!r}")

    @property
    def ranges(self) -> Ranges:
        """Return the part that says which poses to search."""
        return Ranges(self.angles, self.scales, self.contrast == "either")


@dataclass(frozen=True)
class TemplateReport:
    """How the search for one template went.

    Attributes:
        status: "searched", "flat" (no contrast, so no score) or "too large" for the scene.
        reason: A sentence where it was not searched, else "".
        best_rejected: Best score that did not become a hit; 0 where there is none.
        factor: How many times smaller the picture was that all poses were scored on.
        poses: How many angles and scales were scored, which the cost grows with.
    """

    status: Literal["searched", "flat", "too large"]
    reason: str = ""
    best_rejected: float = 0.0
    factor: int = 1
    poses: int = 0


@dataclass(frozen=True, eq=False)
class TemplateSearch:
    """Hits of all templates, best first within each, and a report for each template."""

    hits: list[TemplateHit]
    reports: list[TemplateReport]


def find(
    templates: object, scene: object, masks: object = None, **options: Any
) -> list[TemplateHit]:
    """Find one template, or each of a list, in a scene; see `search` for a diagnosis too.

    Args:
        templates: A path, PIL image, array or tensor; or a list or tuple of them.
        scene: Likewise. Where one is grey and the other is not, both are searched in grey.
            NaN pixels count as masked.
        masks: Weights of the template's pixels, bool or any range of 0 or more, of its size; for a
            list of templates a list, with None for no mask.
        **options: Fields of `FindOptions`.

    Returns:
        Hits, best first (template by template for a list); empty where nothing reaches the threshold.

    Raises:
        ValueError: A single template is larger than the scene (of a list it is skipped), a mask
            does not fit, or an option is out of range.
        TypeError: There is no such option.
    """
    return search(templates, scene, masks, **options).hits


def search(
    templates: object, scene: object, masks: object = None, **options: Any
) -> TemplateSearch:
    """Find templates like `find`, and report on each: why not searched, best score rejected."""
    wanted = FindOptions(**options)
    many = isinstance(templates, (list, tuple))
    sources = list(templates) if isinstance(templates, (list, tuple)) else [templates]
    listed = _listed_masks(masks, len(sources), many)
    pyramid = Pyramid(_pixels(scene))
    found: dict[int, tuple[list[TemplateHit], TemplateReport]] = {}

    def search_one(number: int) -> None:
        pixels, level = _same_channels(_pixels(sources[number]), pyramid)
        template = make_template(pixels, listed[number])
        found[number] = _search_one(template, level, wanted, number)
        report = found[number][1]
        if report.status == "too large" and not many:
            raise ValueError(report.reason)

    if wanted.mode == "exhaustive":  # which is all sums; pyramid search would wait for Python
        in_threads(search_one, len(sources))
    else:
        for number in range(len(sources)):
            search_one(number)
    ordered = [found[number] for number in range(len(sources))]
    hits = [hit for some, _ in ordered for hit in some]
    return TemplateSearch(hits, [report for _, report in ordered])


def _pixels(source: object) -> Pixels:
    """Take numbers as they are stored; arrays of grey or RGB pixels are not even copied."""
    if not isinstance(source, np.ndarray) or source.dtype.kind not in "uif" or not source.size:
        return images.values(source)
    plain = source.ndim == 2 or (source.ndim == 3 and source.shape[2] == 3)
    return source if plain else images.values(source)


def _listed_masks(masks: object, count: int, many: bool) -> list[NDArray[np.generic] | None]:
    """Bring masks to one for each template."""
    if masks is None:
        return [None] * count
    listed = list(masks) if many and isinstance(masks, (list, tuple)) else [masks]
    if len(listed) != count:
        raise ValueError(f"there are {len(listed)} masks for {count} templates")
    return [None if mask is None else np.asarray(mask) for mask in listed]


def _same_channels(pixels: Pixels, pyramid: Pyramid) -> tuple[Pixels, Pyramid]:
    """Turn what is in colour to grey where the other is grey."""
    if pixels.ndim == pyramid.level(1).ndim:
        return pixels, pyramid
    return (grey(pixels), pyramid) if pixels.ndim == 3 else (pixels, pyramid.grey())


def _search_one(
    template: Template, pyramid: Pyramid, options: FindOptions, number: int
) -> tuple[list[TemplateHit], TemplateReport]:
    """Survey all poses on one level, then settle the peaks."""
    if template.kernel.flat:
        return [], TemplateReport("flat", "the template has no contrast under its mask")
    mode: Literal["exhaustive", "pyramid"] = (
        "exhaustive" if options.mode == "exhaustive" else "pyramid"
    )
    survey = make_survey(template, pyramid, options.ranges, mode, options.threshold - _ROUNDING)
    if survey is None:
        (h, w), (height, width) = template.size, pyramid.size
        posed = ", turned and scaled as asked for," if h <= height and w <= width else ""
        reason = f"a template of {h} x {w} pixels{posed} does not fit a scene of {height} x {width}"
        return [], TemplateReport("too large", reason)
    settler = Settler(template, pyramid, options.ranges, survey, options.overlap)
    detail = Detail(template, pyramid)
    found, rejected = _settle(survey, settler, detail, template.size, options)
    if not found:
        rejected = max(rejected, float(survey.scores.max())) if survey.factor == 1 else rejected
    second = _second(found, rejected, survey, template.size)
    hits = [_hit(one, second / abs(one.score), template.size, number) for one in found]
    return hits, TemplateReport("searched", "", rejected, survey.factor, len(survey.poses))


def _settle(
    survey: Survey,
    settler: Settler,
    detail: Detail,
    size: tuple[int, int],
    options: FindOptions,
) -> tuple[list[Settled], float]:
    """Settle peaks from the best down until the hits are complete.

    Returns:
        Distinct places that reach the threshold, best first; and the best score of another place.
    """
    found: list[Settled] = []
    rejected: list[tuple[Pose, float]] = []
    final = survey.exact is not None  # a peak is settled as it stands, and no better one comes
    followed = options.ranges.still and not final  # all that a small level leaves
    tries, most = 0, math.inf if followed else _TRIES * (10 + options.max_hits)
    for candidate in survey.candidates():
        if final and any(overlap(f.pose, candidate.pose, size) > options.overlap for f in found):
            continue
        if len(found) >= options.max_hits:
            best = found if final else _distinct(found, size, options)
            possible = candidate.score + survey.loss
            if len(best) == options.max_hits and possible <= min(abs(f.score) for f in best):
                break
        if tries >= most:
            break
        tries += 1
        one = settler(candidate.pose, options.threshold)
        worth = abs(one.score) if options.contrast == "either" else one.score
        if worth >= options.threshold - _EXACT:
            one = replace(one, detail=detail.score(one.pose, negative=one.score < 0))
        if worth >= options.threshold - _EXACT and one.detail >= options.detail:
            found.append(one)
        else:
            rejected.append((one.pose, worth))
    kept = _distinct(found, size, options)
    elsewhere = [
        worth
        for pose, worth in rejected
        if all(overlap(one.pose, pose, size) <= options.overlap for one in kept)
    ]
    return kept, max(elsewhere, default=0.0)


def _distinct(found: list[Settled], size: tuple[int, int], options: FindOptions) -> list[Settled]:
    """Order by score, equal scores in reading order, and drop what overlaps a better one."""
    half = (size[0] - 1) / 2  # a copy's first row is a whole pixel; its middle may be half a one
    found = sorted(found, key=lambda f: (-round(abs(f.score), 5), round(f.pose.y - half), f.pose.x))
    kept: list[Settled] = []
    for one in found:
        if all(overlap(k.pose, one.pose, size) <= options.overlap for k in kept):
            kept.append(one)
        if len(kept) == options.max_hits:
            break
    return kept


def _second(found: list[Settled], rejected: float, survey: Survey, size: tuple[int, int]) -> float:
    """Find the best score away from the best hit."""
    if not found:
        return 0.0
    if len(found) > 1:
        return abs(found[1].score)
    return max(rejected, survey.best_outside(found[0].pose, size), 0.0)


def _hit(found: Settled, ambiguity: float, size: tuple[int, int], number: int) -> TemplateHit:
    pose = found.pose
    return TemplateHit(
        x=float(pose.x),
        y=float(pose.y),
        angle_degrees=float(pose.angle_degrees),
        scale=float(pose.scale),
        score=found.score,
        corners=pose.corners(size),
        template=number,
        second_score=min(1.0, ambiguity),
        subpixel=found.subpixel,
        detail=found.detail,
    )
