"""The public layouts of data sets: how each is read, and where it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matcher.datasets.entries import Entry, pairs_of
from matcher.datasets.labelled import wxbs
from matcher.datasets.lists import load_pair_list
from matcher.datasets.manifest import load_pairs
from matcher.datasets.planar import evd, hpatches, oxford_affine
from matcher.datasets.posed import megadepth, scannet, strecha
from matcher.types import Pair


@dataclass(frozen=True)
class Layout:
    """A data set as it is published.

    Attributes:
        entries: From the root folder and the options to the pairs.
        obtain: How to get it, as a sentence; nothing is fetched unasked.
    """

    entries: Callable[..., list[Entry]]
    obtain: str


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "hpatches": Layout(
            hpatches,
            "Get hpatches-sequences-release.tar.gz from https://github.com/hpatches/hpatches-dataset"
            " and unpack it: --root is the folder with i_ajuntament and the others.",
        ),
        "megadepth": Layout(
            megadepth,
            "Get the test images (Undistorted_SfM of scenes 0015 and 0022) and the folder"
            " assets/megadepth_test_1500_scene_info from https://github.com/zju3dv/LoFTR: --root"
            " holds both. The images keep the terms of MegaDepth.",
        ),
        "scannet": Layout(
            scannet,
            "Ask for ScanNet at http://www.scan-net.org, whose terms of use you sign, and get"
            " assets/scannet_test_1500 (test.npz, intrinsics.npz) from"
            " https://github.com/zju3dv/LoFTR: --root holds it and the scenes.",
        ),
        "oxford-affine": Layout(
            oxford_affine,
            "Get the eight sequences from https://www.robots.ox.ac.uk/~vgg/research/affine and"
            " unpack each into a folder of its own: --root is the folder with bark, bikes ...",
        ),
        "strecha": Layout(
            strecha,
            "Get the scenes with their cameras from"
            " https://documents.epfl.ch/groups/c/cv/cvlab-unit/www/data/multiview/denseMVS.html and"
            " unpack them side by side: --root is the folder with fountain_dense ...",
        ),
        "evd": Layout(
            evd,
            "Get the Extreme View Dataset from http://cmp.felk.cvut.cz/wbs: --root is the folder"
            " with 1, 2 and h.",
        ),
        "wxbs": Layout(
            wxbs,
            "Get WxBS_v1.1.zip from http://cmp.felk.cvut.cz/wbs/datasets and unpack it: --root is the"
            " folder with WGABS, WGALBS and the others.",
        ),
    }
)


def load_layout(name: str, root: str | Path, **options: Any) -> list[Pair]:
    """Load a data set in its published layout, checked for completeness.

    Args:
        name: A key of `LAYOUTS`; "list" for a pair list, with `file` and, relative to the root,
            `images`; or "manifest" for a file pairs.json.
        root: Its folder.
        **options: Of the layout.

    Raises:
        FileNotFoundError: The folder, files or all pairs are missing; the message says which, and
            how to get the data.
        ValueError: No such layout; or a wrong entry, named.
    """
    root = Path(root)
    if name == "list":
        return _listed(root, **options)
    if name == "manifest":
        return load_pairs(root / "pairs.json")
    if name not in LAYOUTS:
        raise ValueError(f"no layout {name!r}; there are {', '.join([*LAYOUTS, 'list, manifest'])}")
    layout = LAYOUTS[name]
    try:
        if not root.is_dir():
            raise FileNotFoundError(f"{root} is no folder")
        entries = layout.entries(root, **options)
        if not entries:
            raise FileNotFoundError(f"{root} has no pair in the layout {name!r}")
        return pairs_of(entries)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}. {layout.obtain}") from error


def _listed(root: Path, *, file: str, images: str = ".", dataset: str = "") -> list[Pair]:
    return load_pair_list(root / file, root / images, dataset=dataset)
