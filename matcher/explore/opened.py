"""The pair that is open in the explorer: its images, what is known of it, what each method says of it.

Large images are shrunk, so that every answer is quick; the page works in the pixels of the shrunk
ones and shows those of the images given. Methods and their answers are made when first asked for.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

from matcher import datasets, images
from matcher.decoding import open_image
from matcher.evaluation.scoring import Frame
from matcher.evaluation.truth import reprojection_errors, true_places
from matcher.evaluation.truth_file import read_truth
from matcher.explore.probe import Probe, probe
from matcher.geometry import fitting
from matcher.geometry.fits import Fit, Reason
from matcher.images import ImageError
from matcher.methods import ncc
from matcher.types import Description, Image, Matcher, Matches, Matrix, Pair, ScoreMap, Truth

MOST_BYTES = 64 * 2**20  # of an image file
MOST_PIXELS = 50_000_000  # of an image: what a camera gives, not what a bomb unpacks to
_SAMPLE = "light"  # exact warps of one photograph: the truth is known everywhere
NAME_LENGTH = 120  # letters of a file's name that are shown


@dataclass(frozen=True, eq=False)
class Shown:
    """One image of the pair.

    Attributes:
        name: Of its file, to be shown; nothing is ever read by it.
        image: (H, W) or (H, W, 3) at working size.
        size: Height and width of the image given.
    """

    name: str
    image: Image
    size: tuple[int, int]

    @property
    def working_size(self) -> tuple[int, int]:
        """Height and width at working size."""
        return self.image.shape[0], self.image.shape[1]

    def jpeg(self) -> bytes:
        """Encode for the page."""
        encoded = io.BytesIO()
        numbers = np.rint(self.image * 255).astype(np.uint8)
        PilImage.fromarray(numbers).save(encoded, "JPEG", quality=92)
        return encoded.getvalue()


@dataclass(frozen=True, eq=False)
class Fitted:
    """A method's matches against what can be known of them.

    Attributes:
        probe: The method at work.
        inliers: (N,) True for matches that agree with one model.
        model: What the model is: "homography" or "fundamental matrix"; empty where there is none.
        homography: pixels1_from_pixels0 at working size; None where the matches give none.
        errors: (N,) distances from the truth in pixels of image 1 as given; None without truth.
    """

    probe: Probe
    inliers: NDArray[np.bool_]
    model: str
    homography: Matrix | None
    errors: Matrix | None


@dataclass(frozen=True, eq=False)
class Opened:
    """Two images under a choice of methods.

    Attributes:
        shown: Both images.
        makers: How to make each method, by label; the first is shown first. A method must not
            refine its matches: the explorer shows them before and after.
        long_side: Larger images are shrunk to it.
        truth: In pixels of the images given; None where nothing is known.
    """

    shown: tuple[Shown, Shown]
    makers: Mapping[str, Callable[[], Matcher]]
    long_side: int
    truth: Truth | None = None
    _made: dict[str, Matcher] = field(default_factory=dict)  # outlives the pair
    _fitted: dict[str, Fitted] = field(default_factory=dict)
    _patches: Matcher = field(default_factory=lambda: ncc.build(device="cpu"))
    _working: threading.RLock = field(default_factory=threading.RLock)

    def with_image(self, side: int, data: bytes, name: str) -> Opened:
        """Exchange one image by the bytes of a file; what was known of the pair holds no more.

        Raises:
            ImageError: The bytes are no image, or too large a one.
        """
        with self._working:  # one at a time: a decoded picture takes ten times its file
            new = show(data, name, self.long_side)
        shown = (new, self.shown[1]) if side == 0 else (self.shown[0], new)
        return replace(self, shown=shown, truth=None, _fitted={})

    def fitted(self, label: str) -> Fitted:
        """Let a method match the pair, once.

        Raises:
            ValueError: There is no such method here.
        """
        if label not in self.makers:
            raise ValueError(f"no method {label!r} here; there are {', '.join(self.makers)}")
        with self._working:  # one question at a time: they share processors and memory
            if label not in self._fitted:
                if label not in self._made:
                    self._made[label] = self.makers[label]()
                images_ = self.shown[0].image, self.shown[1].image
                self._fitted[label] = self._judged(probe(self._made[label], images_))
            return self._fitted[label]

    def pixels(self, point0: tuple[float, float]) -> ScoreMap:
        """Compare the patch round a point of image 0 with every place of image 1, by NCC."""
        described0, described1 = (_undescribed(shown.image) for shown in self.shown)
        with self._working:
            return self._patches.score_map((described0, described1), point0)

    def true_place(self, point0: Sequence[float]) -> tuple[float, float] | None:
        """Look up where a point of image 0 truly lies in image 1; None where that is unknown."""
        if self.truth is None:
            return None
        given = images.resize_points(
            np.array([point0], np.float32), self.shown[0].working_size, self.shown[0].size
        )
        place = true_places(self.truth, given).astype(np.float32)
        x, y = images.resize_points(place, self.shown[1].size, self.shown[1].working_size)[0]
        return (float(x), float(y)) if np.isfinite(x) and np.isfinite(y) else None

    def _judged(self, asked: Probe) -> Fitted:
        """Fit what the matches may agree on, and measure them against the truth."""
        matches = asked.matches
        plane = fitting.fit_homography(matches.points0, matches.points1)
        views = fitting.fit_fundamental(matches.points0, matches.points1)
        fit, model = _better(plane, views)
        errors = None
        if self.truth is not None:
            errors = reprojection_errors(self._as_given(matches), self.truth)
        return Fitted(asked, fit.inliers, model, plane.model if plane.success else None, errors)

    def _as_given(self, matches: Matches) -> Matches:
        """Move matches to the pixels of the images given."""
        shown0, shown1 = self.shown
        sizes, working = (shown0.size, shown1.size), (shown0.working_size, shown1.working_size)
        return Frame(sizes, working).to_original(matches)


def find_pair(image0: Path | None, image1: Path | None, truth: Path | None = None) -> Pair:
    """Make a pair of two files and of what a third knows of them; without files, a sample pair.

    Raises:
        ValueError: There is one image, or a truth that is none of these images.
        FileNotFoundError: There is no such file.
    """
    if image0 is None and image1 is None:
        return next(pair for pair in datasets.benchmark("sample") if pair.name == _SAMPLE)
    if image0 is None or image1 is None:
        raise ValueError("give two images, or none for a sample pair")
    known = None if truth is None else read_truth(truth, image0, image1)
    return Pair(image0.name, image0, image1, known)


def open_pair(pair: Pair, makers: Mapping[str, Callable[[], Matcher]], long_side: int) -> Opened:
    """Read the two image files of a pair.

    Args:
        pair: The files, and what is known of them.
        makers: How to make each method, by label.
        long_side: Larger images are shrunk to it.

    Raises:
        FileNotFoundError: There is no such file.
        ImageError: A file is no image, or too large a one.
    """
    shown0, shown1 = (
        show(path.read_bytes(), path.name, long_side) for path in (pair.image0, pair.image1)
    )
    return Opened((shown0, shown1), makers, long_side, pair.truth)


def show(data: bytes, name: str, long_side: int) -> Shown:
    """Decode the bytes of an image file, within limits, and shrink it.

    Raises:
        ImageError: They are no image, or a larger one than the limits allow.
    """
    if len(data) > MOST_BYTES:
        raise ImageError(f"the file has more than {MOST_BYTES >> 20} MiB")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PilImage.DecompressionBombWarning)  # refused below
            with open_image(io.BytesIO(data)) as opened:  # reads the header only
                width, height = opened.size
    except ImageError:
        width = height = 0  # for the reader below, which says why
    if width * height > MOST_PIXELS:
        raise ImageError(f"the image has {width} x {height} pixels, more than {MOST_PIXELS:,}")
    image = images.read(data)
    size = image.shape[0], image.shape[1]
    shrunk = images.resize(image, images.fit_long_side(size, long_side))
    return Shown(_printable(name), shrunk, size)


def _printable(name: str) -> str:
    """Take from a file's name what would confuse a reader: control characters and length."""
    letters = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name
    )
    return letters if len(letters) <= NAME_LENGTH else letters[: NAME_LENGTH - 1] + "…"


def _better(plane: Fit[Matrix], views: Fit[Matrix]) -> tuple[Fit[Matrix], str]:
    """Choose the model that the inliers are told by: a plane where it explains them."""
    if plane.success and (views.reason is Reason.PLANAR or not views.success):
        return plane, "homography"
    return views, "fundamental matrix" if views.success else ""


def _undescribed(image: Image) -> Description:
    """Wrap an image for a method that looks at nothing but its pixels."""
    none = np.zeros((0, 2), np.float32)
    return Description("ncc", images.grey(image), None, none, none[:, 0], none)
