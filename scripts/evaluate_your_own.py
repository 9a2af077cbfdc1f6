"""Evaluate matchers of your own beside those of the package: any function of two images.

    python scripts/evaluate_your_own.py --out runs/mine
    python scripts/evaluate_your_own.py --out runs/mine --transformers ETH-CVG/lightglue_superpoint

A function takes two images as float arrays in [0, 1], (H, W) or (H, W, 3), and returns `Matches` or
(points0, points1). Here: OpenCV's ORB, and the keypoint matching models of transformers, by the name
or the folder of a checkpoint. The report of the sample pairs goes to the folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np

from matcher import datasets, images, methods
from matcher.evaluation import pictures, report, tables
from matcher.evaluation.runner import evaluate
from matcher.evaluation.session import Method
from matcher.types import Image, Matches

Function: TypeAlias = Callable[[Image, Image], Matches]


def orb(image0: Image, image1: Image) -> Matches:
    """Match by OpenCV's ORB, mutual best; scores fall with the distance of the descriptors."""
    detector = cv2.ORB.create(2000)
    levels = [np.rint(255 * images.grey(image)).astype(np.uint8) for image in (image0, image1)]
    (keypoints0, bits0), (keypoints1, bits1) = (
        detector.detectAndCompute(each, None) for each in levels
    )
    if bits0 is None or bits1 is None:
        return Matches.empty()
    found = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(bits0, bits1)
    points0 = np.array([keypoints0[match.queryIdx].pt for match in found], np.float32)
    points1 = np.array([keypoints1[match.trainIdx].pt for match in found], np.float32)
    scores = np.array([1 - match.distance / 256 for match in found], np.float32)
    return Matches(points0.reshape(-1, 2), points1.reshape(-1, 2), scores).sorted()


def from_transformers(model: Any, processor: Any, threshold: float = 0.2) -> Function:
    """Make a function of a keypoint matching model of transformers.

    Args:
        model: An `AutoModelForKeypointMatching`, in evaluation mode.
        processor: Its `AutoImageProcessor`.
        threshold: Least score of a match.
    """
    import torch  # noqa: PLC0415  only where this is used

    def match(image0: Image, image1: Image) -> Matches:
        levels = [_rgb(image) for image in (image0, image1)]
        inputs = processor([levels], return_tensors="pt")
        with torch.inference_mode():
            outputs = model(**inputs)
        sizes = [[level.shape[:2] for level in levels]]
        found = processor.post_process_keypoint_matching(outputs, sizes, threshold=threshold)[0]
        arrays = [found[name].numpy() for name in ("keypoints0", "keypoints1", "matching_scores")]
        return Matches(*arrays).sorted()

    return match


def load_transformers(checkpoint: str) -> Function:
    """Load a model by name, which fetches it, or from a folder."""
    from transformers import (  # noqa: PLC0415
        AutoImageProcessor,
        AutoModelForKeypointMatching,
    )

    model = AutoModelForKeypointMatching.from_pretrained(checkpoint).eval()
    processor: Any = AutoImageProcessor
    return from_transformers(model, processor.from_pretrained(checkpoint))


def _rgb(image: Image) -> np.ndarray:
    levels = np.rint(255 * image).astype(np.uint8)
    return np.stack([levels] * 3, axis=2) if levels.ndim == 2 else levels


def main() -> None:
    """Evaluate, print the table, write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--transformers", metavar="CHECKPOINT", help="name or folder of a model")
    arguments = parser.parse_args()
    compared: dict[str, Method] = {"superglue": methods.build("superglue"), "my ORB": orb}
    if arguments.transformers:
        compared[arguments.transformers] = load_transformers(arguments.transformers)
    pairs = datasets.sample_pairs()
    evaluation = evaluate(compared, pairs, out=arguments.out)
    pictures.draw(evaluation, compared, pairs, arguments.out)
    print(tables.markdown(evaluation))
    print(report.write_report(evaluation, arguments.out)[0])


if __name__ == "__main__":
    main()
