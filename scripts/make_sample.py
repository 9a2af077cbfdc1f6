"""Make the sample pairs of `data/`: real views with their poses, photographs warped exactly.

    python scripts/make_sample.py --scenes FOLDER

`--scenes` holds whole image sets named SCENE_NNN.jpg (sources: data/README.md). COLMAP reconstructs
each with its own SIFT, all images together, so the poses owe nothing to the methods measured on
them; the pairs are undistorted. Without `--scenes` only the warped and unrelated pairs are made
anew. Needs `tiepoint[baselines,sfm]`. `scripts/verify_sample.py` checks what this script wrote.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Matrix = NDArray[np.float64]
Corners = tuple[tuple[float, float], ...]  # fractions of width and height: top-left, clockwise
WHOLE: Corners = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
OVERSAMPLING = 4  # a warp renders this many pixels a side for each one, and averages them


@dataclass(frozen=True)
class View:
    """One picture made from a photograph: which quadrangle of it is shown, and in what light.

    Attributes:
        size: (width, height) in pixels.
        corners: Where the picture's corners lie in the photograph.
        gamma: Exponent of the brightness; over 1 is darker.
        shade: Brightness at the right edge over that at the left.
        blur: Sigma of a Gaussian, pixels.
        noise: Standard deviation, grey values.
    """

    size: tuple[int, int]
    corners: Corners = WHOLE
    gamma: float = 1.0
    shade: float = 1.0
    blur: float = 0.0
    noise: float = 2.0


@dataclass(frozen=True)
class Warp:
    """A pair made of two views of one photograph."""

    name: str
    photo: str
    view0: View
    view1: View


@dataclass(frozen=True)
class Views:
    """A pair of two photographs of one scene, by their numbers."""

    name: str
    scene: str
    number0: int
    number1: int


def turned(degrees: float, size: float, aspect: float) -> Corners:
    """Lay a turned rectangle on the middle of a photograph.

    Args:
        degrees: Turn of the rectangle, clockwise on the screen.
        size: Width of the rectangle over width of the photograph; the rectangle is 4:3.
        aspect: Width over height of the photograph.
    """
    turn = np.deg2rad(degrees)
    corners = size / 2 * np.array([(-1, -0.75), (1, -0.75), (1, 0.75), (-1, 0.75)])
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    moved = corners @ rotation * (1, aspect) + 0.5
    return tuple((float(x), float(y)) for x, y in moved)


WARPS = (
    Warp(
        "light",
        "life_by_Aitzol_Berasategi.jpg",
        View((640, 426), gamma=0.8),
        View((640, 426), turned(6, 0.82, 800 / 533), gamma=2.2, shade=0.35, noise=6),
    ),
    Warp(
        "scale",
        "picosdeeuropa_by_Aitzol_Berasategi.jpg",
        View((480, 360), ((0.2, 0.3), (0.8, 0.3), (0.8, 0.9), (0.2, 0.9))),
        View((320, 240), gamma=1.2),
    ),
    Warp(
        "rotation",
        "Dragonfly_by_Bolly.jpg",
        View((640, 480)),
        View((480, 360), turned(125, 0.68, 800 / 600), gamma=0.9),
    ),
    Warp(
        "viewpoint",
        "china.jpg",
        View((560, 374)),
        View((480, 400), ((0.05, 0.3), (0.75, 0.02), (0.85, 0.98), (0.1, 0.75)), gamma=1.15),
    ),
    Warp(
        "blur",
        "Picture_0B_by_freespace.jpg",
        View((640, 433)),
        View((600, 420), ((0.1, 0.06), (0.94, 0.03), (0.97, 0.9), (0.05, 0.95)), blur=2, noise=3),
    ),
    Warp(
        "repetition",
        "flower.jpg",
        View((512, 342)),
        View((440, 330), turned(25, 0.62, 640 / 427), gamma=1.1),
    ),
)
VIEWS = (
    Views("facade", "berlin", 0, 2),
    Views("turn", "caliterra", 35, 40),
    Views("park", "brighton", 8, 15),
    Views("canopy", "brighton", 2, 3),
    Views("sand", "copr", 33, 36),
)
UNRELATED = ("unrelated", "china.jpg", "life_by_Aitzol_Berasategi.jpg")
MARKER = ("marker", "copr", 33, 5, (175, 265), 64)  # views, centre and side of the template


def main() -> None:
    """Make the images and the manifest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=Path(__file__).resolve().parent.parent / "data"
    )
    parser.add_argument("--scenes", type=Path, help="folder of SCENE_NNN.jpg")
    arguments = parser.parse_args()
    manifest = arguments.data / "pairs.json"
    known = {e["id"]: e for e in json.loads(manifest.read_text())} if manifest.exists() else {}
    (arguments.data / "images").mkdir(exist_ok=True)
    made = [make_warp(arguments.data, warp, seed) for seed, warp in enumerate(WARPS)]
    made.append(unrelated(arguments.data))
    if arguments.scenes:
        made += make_views(arguments.data, arguments.scenes)
    known.update({entry["id"]: entry for entry in made})
    entries = sorted(known.values(), key=lambda entry: (entry["dataset"], entry["id"]))
    manifest.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n")
    print(f"{len(entries)} pairs in {manifest}")


def make_warp(data: Path, warp: Warp, seed: int) -> dict[str, Any]:
    """Render both views of a photograph and return the pair's entry."""
    photo = picture(data / "photos" / warp.photo)
    maps = []
    names = [f"images/{warp.name}_{index}.jpg" for index in (0, 1)]
    for index, view in enumerate((warp.view0, warp.view1)):
        view_from_photo = map_to_view(view, photo.shape[1], photo.shape[0])
        generator = np.random.default_rng((seed, index))
        save(data / names[index], relight(render(photo, view, view_from_photo), view, generator))
        maps.append(view_from_photo)
    view1_from_view0 = maps[1] @ np.linalg.inv(maps[0])
    return {
        **entry(data, warp.name, "warped", "homography", names),
        "H_0to1": (view1_from_view0 / view1_from_view0[2, 2]).tolist(),
        "note": f"two exact warps of photos/{warp.photo} with other light and noise",
    }


def map_to_view(view: View, width: int, height: int) -> Matrix:
    """Return the homography that brings the photograph's pixels to the view's.

    Corners are outer corners of the images, half a pixel outside the centres of the corner pixels.
    """
    outside = np.array(view.corners) * (width, height) - 0.5
    inside = np.array(WHOLE) * view.size - 0.5
    return np.asarray(
        cv2.getPerspectiveTransform(outside.astype("f4"), inside.astype("f4")), np.float64
    )


def render(photo: Pixels, view: View, view_from_photo: Matrix) -> NDArray[np.float64]:
    """Warp a photograph without aliasing: finely, then averaged."""
    fine, half = OVERSAMPLING, (OVERSAMPLING - 1) / 2
    fine_from_view = np.array([[fine, 0, half], [0, fine, half], [0, 0, 1]])
    width, height = view.size
    large = cv2.warpPerspective(
        photo,
        fine_from_view @ view_from_photo,
        (width * fine, height * fine),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )
    averaged: NDArray[np.float64] = large.reshape(height, fine, width, fine, 3).mean(axis=(1, 3))
    return averaged


def relight(image: NDArray[np.float64], view: View, generator: np.random.Generator) -> Pixels:
    """Blur, darken, shade and add noise."""
    if view.blur:
        image = np.asarray(cv2.GaussianBlur(image, (0, 0), view.blur), np.float64)
    ramp = np.linspace(1, view.shade, image.shape[1])[:, None]
    lit = 255 * (image / 255) ** view.gamma * ramp
    return np.clip(lit + generator.normal(0, view.noise, lit.shape) + 0.5, 0, 255).astype(np.uint8)


def unrelated(data: Path) -> dict[str, Any]:
    """Pair two photographs of different places."""
    name, *photos = UNRELATED
    paths = [f"photos/{photo}" for photo in photos]
    return {**entry(data, name, "unrelated", "unrelated", paths), "note": "no point in common"}


def make_views(data: Path, scenes: Path) -> list[dict[str, Any]]:
    """Reconstruct every scene once and write its pairs."""
    made = []
    for scene in sorted({views.scene for views in VIEWS}):
        with tempfile.TemporaryDirectory() as folder:
            reconstruct(scenes, scene, Path(folder))
            chosen = [views for views in VIEWS if views.scene == scene]
            made += [pose_pair(data, Path(folder), views) for views in chosen]
            if scene == MARKER[1]:
                made.append(marker_pair(data, Path(folder)))
    return made


def reconstruct(scenes: Path, scene: str, folder: Path) -> None:
    """Reconstruct a scene by COLMAP and undistort its images into `folder`/flat."""
    import pycolmap  # noqa: PLC0415  only the real views need it

    pycolmap.set_random_seed(0)
    names = sorted(path.name for path in scenes.glob(f"{scene}_*.jpg"))
    reader = pycolmap.ImageReaderOptions(camera_model="SIMPLE_RADIAL")
    camera = pycolmap.CameraMode.SINGLE
    database = folder / "features.db"
    pycolmap.extract_features(database, scenes, names, camera_mode=camera, reader_options=reader)
    pycolmap.match_exhaustive(database)
    options = pycolmap.IncrementalPipelineOptions(
        multiple_models=False, min_model_size=3, random_seed=0
    )
    options.mapper.init_min_tri_angle = 4  # degrees: the facade's three views are close together
    options.mapper.init_min_num_inliers = 30
    pycolmap.incremental_mapping(database, scenes, folder, options)
    pycolmap.undistort_images(folder / "flat", folder / "0", scenes)


def pose_pair(data: Path, folder: Path, views: Views) -> dict[str, Any]:
    """Write two undistorted images of a reconstruction and return their entry."""
    model, image0, image1 = flat_model(folder, views.scene, views.number0, views.number1)
    names = [f"images/{views.name}_{index}.jpg" for index in (0, 1)]
    for name, image in zip(names, (image0, image1), strict=True):
        save(data / name, picture(folder / "flat" / "images" / image.name))
    camera1_from_camera0 = image1.cam_from_world() * image0.cam_from_world().inverse()
    baseline = camera1_from_camera0.translation
    shared = len(seen_points(image0) & seen_points(image1))
    return {
        **entry(data, views.name, "real", "pose", names),
        "K0": intrinsics(model, image0).tolist(),
        "K1": intrinsics(model, image1).tolist(),
        "R_0to1": camera1_from_camera0.rotation.matrix().tolist(),
        "t_0to1": (baseline / np.linalg.norm(baseline)).tolist(),
        "note": f"{views.scene} {views.number0} and {views.number1}; COLMAP of the whole scene, "
        f"{shared} common points",
    }


def marker_pair(data: Path, folder: Path) -> dict[str, Any]:
    """Cut a ground marker from one view; its place in another follows from the ground plane."""
    name, scene, number0, number1, (x, y), side = MARKER
    model, image0, image1 = flat_model(folder, scene, number0, number1)
    left, top = x - side // 2, y - side // 2
    whole = picture(folder / "flat" / "images" / image0.name)
    names = [f"images/{name}_template.jpg", f"images/{name}_scene.jpg"]
    save(data / names[0], whole[top : top + side, left : left + side], quality=95)
    save(data / names[1], picture(folder / "flat" / "images" / image1.name))
    view_from_template = np.array([[1, 0, left], [0, 1, top], [0, 0, 1.0]])
    homography = plane_homography(model, image0, image1, (x, y), side) @ view_from_template
    return {
        **entry(data, name, "template", "template", names),
        "H_0to1": (homography / homography[2, 2]).tolist(),
        "note": f"{scene} {number0} and {number1}; homography of the ground plane round the marker",
    }


def plane_homography(model: Any, image0: Any, image1: Any, centre: Any, side: int) -> Matrix:
    """Fit a plane to the points seen round a pixel and return the map it induces."""
    camera0 = image0.cam_from_world()
    near = [
        camera0 * model.points3D[point.point3D_id].xyz
        for point in image0.points2D
        if point.has_point3D() and np.abs(point.xy - 0.5 - centre).max() < side
    ]
    points = np.array(near)
    normal = np.linalg.lstsq(points, np.ones(len(points)), rcond=None)[0]  # normal . point = 1
    camera1_from_camera0 = image1.cam_from_world() * camera0.inverse()
    moved = camera1_from_camera0.rotation.matrix() + np.outer(
        camera1_from_camera0.translation, normal
    )
    inner: Matrix = intrinsics(model, image1) @ moved @ np.linalg.inv(intrinsics(model, image0))
    return inner


def flat_model(folder: Path, scene: str, number0: int, number1: int) -> tuple[Any, Any, Any]:
    """Read the undistorted reconstruction and find two of its images."""
    import pycolmap  # noqa: PLC0415

    model = pycolmap.Reconstruction(folder / "flat" / "sparse")
    by_name = {image.name: image for image in model.images.values()}
    return model, by_name[f"{scene}_{number0:03}.jpg"], by_name[f"{scene}_{number1:03}.jpg"]


def seen_points(image: Any) -> set[int]:
    """List the reconstructed points that an image observes."""
    return {point.point3D_id for point in image.points2D if point.has_point3D()}


def intrinsics(model: Any, image: Any) -> Matrix:
    """Return a camera's matrix, moved from COLMAP's pixel corners to pixel centres."""
    matrix: Matrix = model.cameras[image.camera_id].calibration_matrix()
    matrix[:2, 2] -= 0.5
    return matrix


def entry(data: Path, name: str, dataset: str, kind: str, images: list[str]) -> dict[str, Any]:
    """Begin a pair's entry with its names and sizes."""
    sizes = [picture(data / image).shape[1::-1] for image in images]
    return {
        "id": name,
        "dataset": dataset,
        "type": kind,
        "image0": images[0],
        "image1": images[1],
        "size0": list(sizes[0]),
        "size1": list(sizes[1]),
    }


def picture(path: Path) -> Pixels:
    """Read a picture as blue, green, red."""
    pixels = cv2.imread(str(path))
    if pixels is None:
        raise FileNotFoundError(f"no picture {path}")
    return pixels.astype(np.uint8, copy=False)


def save(path: Path, image: Pixels, quality: int = 88) -> None:
    """Write a JPEG without metadata."""
    if not cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, quality]):
        raise OSError(f"cannot write {path}")


if __name__ == "__main__":
    main()
