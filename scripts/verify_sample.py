"""Verify the truth of the sample pairs in `data/` by means that did not make it.

    python scripts/verify_sample.py

OpenCV's SIFT matches, which no truth was made from, are held against it:

- homography: matches within 3 px of the map; and, without any feature, the correlation of image 0
  with image 1 brought back by the map, whose peak must lie at the map to half a pixel;
- pose: matches within 3 px of their epipolar lines, against the same share under a pose turned by
  one degree; and the angle to the pose that PoseLib finds from them;
- unrelated: matches that agree with any homography.

Prints a line a pair and ends with status 1 when one fails. Needs `tiepoint[baselines]`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import cv2
import numpy as np
import poselib
from numpy.typing import NDArray

from matcher.datasets import sample_pairs
from matcher.types import Homography, Matrix, Pair, TwoView

Grey = NDArray[np.uint8]
RATIO = 0.8
NEAR_PIXELS = 3.0


@dataclass(frozen=True)
class Finding:
    """What the check of one pair found.

    Attributes:
        pair: The pair's name.
        good: Whether its truth holds.
        figures: What was measured, in words.
    """

    pair: str
    good: bool
    figures: str


def main() -> int:
    """Check every pair."""
    findings = [verify(pair) for pair in sample_pairs()]
    for finding in findings:
        print(f"{'ok  ' if finding.good else 'BAD '} {finding.pair:12} {finding.figures}")
    return 0 if all(finding.good for finding in findings) else 1


def verify(pair: Pair) -> Finding:
    """Check the truth of one pair."""
    image0, image1 = (read_grey(path) for path in (pair.image0, pair.image1))
    points0, points1 = sift_matches(image0, image1)
    if isinstance(pair.truth, Homography):
        return verify_map(pair.name, (image0, image1), (points0, points1), pair.truth)
    if isinstance(pair.truth, TwoView):
        return verify_pose(pair.name, points0, points1, pair.truth)
    _, inliers = cv2.findHomography(points0, points1, cv2.USAC_MAGSAC, NEAR_PIXELS)
    count = 0 if inliers is None else int(inliers.sum())
    return Finding(pair.name, count < 10, f"{count} of {len(points0)} matches agree with a map")


def verify_map(
    name: str, images: tuple[Grey, Grey], matches: tuple[Matrix, Matrix], truth: Homography
) -> Finding:
    """Hold matches and pixels against a homography."""
    points0, points1 = matches
    moved = cv2.perspectiveTransform(points0[None], truth.pixels1_from_pixels0)[0]
    errors = np.linalg.norm(moved - points1, axis=1)
    near = errors < NEAR_PIXELS
    aligned, offset = registration(images, truth.pixels1_from_pixels0)
    small = min(images[0].shape) < 200  # a template, too small for features of its own
    good = aligned > 0.6 and offset < 0.5 and (small or near.mean() > 0.6)
    return Finding(
        name,
        bool(good),
        f"{near.sum()} of {len(near)} matches within {NEAR_PIXELS:g} px; the pixels correlate by "
        f"{aligned:.3f}, best {offset:.2f} px from where the map puts them",
    )


def verify_pose(name: str, points0: Matrix, points1: Matrix, truth: TwoView) -> Finding:
    """Hold matches against epipolar lines, and the pose against another estimator's."""
    errors = epipolar_distances(points0, points1, truth, truth.rotation)
    turned = epipolar_distances(points0, points1, truth, turn(1) @ truth.rotation)
    near = errors < NEAR_PIXELS
    typical = float(np.median(errors[near])) if near.any() else np.inf
    angles = angles_to_poselib(points0, points1, truth)
    fewer = int((turned < 1).sum())
    close = int((errors < 1).sum())
    good = near.sum() >= 20 and typical < 0.7 and close > fewer and max(angles) < 3
    return Finding(
        name,
        bool(good),
        f"{near.sum()} of {len(near)} matches within {NEAR_PIXELS:g} px of their lines, median "
        f"{typical:.2f} px; {close} within 1 px, {fewer} when turned 1°; PoseLib differs by "
        f"{angles[0]:.2f}° of rotation, {angles[1]:.2f}° of direction",
    )


def read_grey(path: object) -> Grey:
    """Read a picture as grey values."""
    image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise FileNotFoundError(f"no picture {path}")
    return image.astype(np.uint8, copy=False)


def sift_matches(image0: Grey, image1: Grey) -> tuple[Matrix, Matrix]:
    """Match by SIFT, ratio and mutual best."""
    sift = cv2.SIFT.create(contrastThreshold=0.01)
    keypoints0, descriptors0 = sift.detectAndCompute(image0, None)
    keypoints1, descriptors1 = sift.detectAndCompute(image1, None)
    best0 = cv2.BFMatcher().knnMatch(descriptors0, descriptors1, k=2)
    best1 = cv2.BFMatcher().match(descriptors1, descriptors0)
    back = {match.queryIdx: match.trainIdx for match in best1}
    kept = [
        first
        for first, second in best0
        if first.distance < RATIO * second.distance and back[first.trainIdx] == first.queryIdx
    ]
    points0 = np.array([keypoints0[match.queryIdx].pt for match in kept], np.float64)
    points1 = np.array([keypoints1[match.trainIdx].pt for match in kept], np.float64)
    return points0.reshape(-1, 2), points1.reshape(-1, 2)


def registration(images: tuple[Grey, Grey], pixels1_from_pixels0: Matrix) -> tuple[float, float]:
    """Correlate the images under the map, and find how far from it they would correlate best.

    Returns:
        The correlation, and the distance in pixels of image 1 to the peak of the parabolas through
        its values one pixel to each side.
    """
    middle = correlation_under(images, pixels1_from_pixels0)
    offsets = []
    for step in (np.eye(3)[0], np.eye(3)[1]):
        moved = [np.eye(3) + side * np.outer(step, np.eye(3)[2]) for side in (-1, 1)]
        before, after = (correlation_under(images, by @ pixels1_from_pixels0) for by in moved)
        offsets.append((before - after) / (2 * (before - 2 * middle + after)))
    return middle, float(np.linalg.norm(offsets))


def correlation_under(images: tuple[Grey, Grey], pixels1_from_pixels0: Matrix) -> float:
    """Correlate image 0 with image 1 brought back, where both have pixels, details only."""
    size = images[0].shape[::-1]
    smooth = [cv2.GaussianBlur(image.astype(np.float32), (0, 0), 2) for image in images]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    back = cv2.warpPerspective(smooth[1], pixels1_from_pixels0, size, flags=flags)
    there = np.full(images[1].shape, 255, np.uint8)
    inside = cv2.warpPerspective(there, pixels1_from_pixels0, size, flags=flags) == 255
    details = [image - cv2.GaussianBlur(image, (0, 0), 8) for image in (smooth[0], back)]
    inside = cv2.erode(inside.astype(np.uint8), np.ones((25, 25), np.uint8)) == 1
    return float(np.corrcoef(details[0][inside], details[1][inside])[0, 1])


def epipolar_distances(
    points0: Matrix, points1: Matrix, truth: TwoView, rotation: Matrix
) -> Matrix:
    """Measure the mean distance of both points to their epipolar lines, pixels."""
    x, y, z = truth.translation
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ rotation
    inverse0, inverse1 = np.linalg.inv(truth.intrinsics0), np.linalg.inv(truth.intrinsics1)
    fundamental = inverse1.T @ essential @ inverse0
    ones = np.ones((len(points0), 1))
    lines1 = np.hstack([points0, ones]) @ fundamental.T
    lines0 = np.hstack([points1, ones]) @ fundamental
    product = np.abs((np.hstack([points1, ones]) * lines1).sum(axis=1))
    distances0 = product / np.linalg.norm(lines0[:, :2], axis=1)
    distances1 = product / np.linalg.norm(lines1[:, :2], axis=1)
    mean: Matrix = (distances0 + distances1) / 2
    return mean


def angles_to_poselib(points0: Matrix, points1: Matrix, truth: TwoView) -> tuple[float, float]:
    """Fit a pose and return its angles to the true rotation and to the true direction, degrees."""
    cameras = [
        {
            "model": "PINHOLE",
            "width": 1,
            "height": 1,
            "params": [K[0, 0], K[1, 1], K[0, 2], K[1, 2]],
        }
        for K in (truth.intrinsics0, truth.intrinsics1)
    ]
    options = {"max_epipolar_error": 1.0, "seed": 0, "min_iterations": 5000}
    pose, _ = poselib.estimate_relative_pose(points0, points1, *cameras, options)
    trace = np.trace(pose.R @ truth.rotation.T)
    norms = np.linalg.norm(pose.t) * np.linalg.norm(truth.translation)
    cosines = np.clip([(trace - 1) / 2, pose.t @ truth.translation / norms], -1, 1)
    rotation, direction = np.degrees(np.arccos(cosines))
    return float(rotation), float(direction)


def turn(degrees: float) -> Matrix:
    """Make a rotation about the axis x."""
    angle = np.deg2rad(degrees)
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]])


if __name__ == "__main__":
    sys.exit(main())
