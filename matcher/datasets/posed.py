"""Read data sets of calibrated views, whose truth is the relative pose of every pair."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.datasets.entries import Entry
from matcher.datasets.fingerprints import image_size
from matcher.geometry.cameras import scale_intrinsics
from matcher.reading import check_archive, read_npz, refusing
from matcher.types import Matrix

_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".ppm")
_SCANNET_SIZE = (480, 640)  # height and width that its camera matrices are for
_INDOORS = ("scannet_test_1500", "assets/scannet_test_1500", ".")
_OUTDOORS = ("megadepth_test_1500_scene_info", "assets/megadepth_test_1500_scene_info", ".")


def megadepth(root: Path) -> list[Entry]:
    """List MegaDepth-1500 as LoFTR keeps it: scene files (.npz) and `Undistorted_SfM`.

    Source: Sun, Shen, Wang, Bao, Zhou, LoFTR, CVPR 2021.
    """
    entries = []
    for path in sorted(_first(root, _OUTDOORS, "*.npz").glob("*.npz")):
        scene = _object_arrays(path)
        for number, ((index0, index1), *_) in enumerate(scene["pair_infos"]):
            names = [str(scene["image_paths"][index]) for index in (index0, index1)]
            poses = [np.asarray(scene["poses"][index], np.float64) for index in (index0, index1)]
            cameras = [np.asarray(scene["intrinsics"][index]) for index in (index0, index1)]
            label = f"{path.stem} {number}"
            values = {"id": label, "dataset": path.stem.partition("_")[0]}
            values |= {"image0": names[0], "image1": names[1]}
            entries.append(_posed(root, values, cameras, poses[1] @ np.linalg.inv(poses[0])))
    return entries


def scannet(root: Path) -> list[Entry]:
    """List ScanNet-1500 as LoFTR keeps it: test.npz, intrinsics.npz, SCENE/color and SCENE/pose.

    The camera matrices belong to 640 x 480 pixels and are moved to the images as they are.

    Source: Sarlin, DeTone, Malisiewicz, Rabinovich, SuperGlue, CVPR 2020 (the pairs); Dai et al.,
    ScanNet, CVPR 2017 (the images).
    """
    lists = _first(root, _INDOORS, "test.npz")
    names = read_npz(lists / "test.npz", names=("name",))["name"]
    known = read_npz(lists / "intrinsics.npz")
    images = next((p for p in (root / "scannet_test_1500", root / "test") if p.is_dir()), root)
    entries = []
    for scene, part, *frames in names.tolist():
        folder = images / f"scene{scene:04}_{part:02}"
        paths = [folder / "color" / f"{frame}.jpg" for frame in frames]
        worlds = [_numbers(folder / "pose" / f"{frame}.txt", (4, 4)) for frame in frames]
        values = {
            "id": f"{folder.name} {frames[0]} {frames[1]}",
            "dataset": "scannet",
            "image0": paths[0].relative_to(root).as_posix(),
            "image1": paths[1].relative_to(root).as_posix(),
        }
        matrix = np.asarray(known[folder.name], np.float64)[:3, :3]
        matrices = [_moved(matrix, path) for path in paths]
        entries.append(_posed(root, values, matrices, np.linalg.inv(worlds[1]) @ worlds[0]))
    return entries


def strecha(root: Path, *, max_gap: int = 3) -> list[Entry]:
    """List the EPFL multi-view scenes: SCENE_dense_cameras/*.camera beside the images.

    A .camera file holds the camera matrix, three numbers of a distortion that the images no longer
    have, the rotation of the camera in the world, its place, and the size.

    Args:
        root: Holds a folder a scene, or all of them under the names of the archives.
        max_gap: Views that are paired lie at most this far apart in the order of their names.

    Source: Strecha, von Hansen, Van Gool, Fua, Thoennessen, On benchmarking camera calibration and
    multi-view stereo for high resolution imagery, CVPR 2008.
    """
    scenes: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.camera")):
        scene = path.relative_to(root).parts[0].removesuffix("_dense_cameras")
        scenes.setdefault(scene.removesuffix("_cameras"), []).append(path)
    entries = []
    for scene, paths in scenes.items():
        for (rank0, path0), (rank1, path1) in combinations(enumerate(paths), 2):
            if rank1 - rank0 <= max_gap:
                entries.append(_strecha_pair(root, scene, (path0, path1)))
    return entries


def _strecha_pair(root: Path, scene: str, paths: tuple[Path, Path]) -> Entry:
    views = [_numbers(path, (26,)) for path in paths]
    motions = [np.eye(4), np.eye(4)]  # camera from world
    for motion, view in zip(motions, views, strict=True):
        motion[:3, :3] = view[12:21].reshape(3, 3).T
        motion[:3, 3] = -motion[:3, :3] @ view[21:24]
    names = [path.name.removesuffix(".camera") for path in paths]
    values = {"id": f"{scene} {names[0]} {names[1]}", "dataset": scene}
    for index, (name, path) in enumerate(zip(names, paths, strict=True)):
        values[f"image{index}"] = _image_of(root, scene, name, path)
    cameras = [view[:9].reshape(3, 3) for view in views]
    return _posed(root, values, cameras, motions[1] @ np.linalg.inv(motions[0]))


def _image_of(root: Path, scene: str, name: str, camera: Path) -> str:
    """Find the image that a .camera file belongs to, beside it or in the scene's image folder."""
    stem = Path(name).stem if Path(name).suffix in _IMAGE_ENDINGS else name
    folders = [camera.parent, *sorted(root.glob(f"{scene}*")), *sorted(root.glob(f"{scene}*/*"))]
    for folder in folders:
        for ending in _IMAGE_ENDINGS:
            if (found := folder / f"{stem}{ending}").is_file():
                return found.relative_to(root).as_posix()
    raise FileNotFoundError(f"{camera} has no image {stem}.png in {root}")


def _posed(root: Path, values: dict[str, Any], cameras: Sequence[Matrix], motion: Matrix) -> Entry:
    """Make an entry from two camera matrices and camera1_from_camera0 (4, 4)."""
    pose = {"K0": cameras[0], "K1": cameras[1], "R_0to1": motion[:3, :3], "t_0to1": motion[:3, 3]}
    return Entry({**values, "type": "pose", **pose}, root, f"{root}, pair {values['id']}")


def _moved(matrix: Matrix, image: Path) -> Matrix:
    width, height = image_size(image)
    return scale_intrinsics(matrix, _SCANNET_SIZE, (height, width))


def _numbers(path: Path, shape: tuple[int, ...]) -> Matrix:
    """Read the numbers of a text file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds something else.
    """
    try:
        return np.array(path.read_text(encoding="utf-8").split(), np.float64).reshape(shape)
    except ValueError as error:
        raise ValueError(f"{path} must have {np.prod(shape)} numbers") from error


def _first(root: Path, folders: Sequence[str], pattern: str) -> Path:
    """Find the first folder that has such a file.

    Raises:
        FileNotFoundError: None has.
    """
    for name in folders:
        if any((root / name).glob(pattern)):
            return root / name
    raise FileNotFoundError(f"{root} has no {pattern}, neither by itself nor in {folders[0]}")


class _ArraysOnly(pickle.Unpickler):
    """Reads numpy's arrays of objects and refuses to call anything else that a file names."""

    _ALLOWED = frozenset({"_reconstruct", "scalar", "ndarray", "dtype", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in ("numpy", "_codecs") or name not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an array")
        return super().find_class(module, name)


def _object_arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    """Read an .npz whose arrays hold objects, without running what a pickle could run.

    Raises:
        ValueError: It holds anything but arrays, numbers, text, lists and tuples.
    """
    found: dict[str, NDArray[Any]] = {}
    with refusing(path, "file of a data set's arrays"), zipfile.ZipFile(path) as archive:
        check_archive(path)
        for name in archive.namelist():
            with archive.open(name) as file:
                version = np.lib.format.read_magic(file)
                read = {1: np.lib.format.read_array_header_1_0}.get(
                    version[0], np.lib.format.read_array_header_2_0
                )
                dtype = read(file)[2]
                if dtype.hasobject:
                    found[name.removesuffix(".npy")] = np.asarray(_ArraysOnly(file).load(), object)
                    continue
            with archive.open(name) as file:
                found[name.removesuffix(".npy")] = np.lib.format.read_array(file)
    return found
