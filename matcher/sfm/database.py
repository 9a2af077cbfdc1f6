"""Write and read COLMAP's database, of its versions 3 and 4, without COLMAP.

Keypoints move by half a pixel on the way out and back: COLMAP counts from the corner of the
top-left pixel, this package from its centre. That happens in this module alone, once.

All is written in one transaction: a reader, or a killed run, sees the old content or the new one.
Writing again gives the same content, and images keep their ids.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.geometry.two_view import Pose
from matcher.reading import refusing
from matcher.sfm import schema
from matcher.sfm.cameras import MODELS, Camera
from matcher.sfm.geometry import Config, Rejection, TwoViewGeometry
from matcher.sfm.tiepoints import NamePair, TiePoints
from matcher.types import Matrix

HALF = 0.5  # COLMAP's (0, 0) is the corner of the top-left pixel
_NUMBER = {Config.REJECTED: 1, Config.CALIBRATED: 2, Config.UNCALIBRATED: 3, Config.PLANAR: 6}
_CONFIG = {number: config for config, number in _NUMBER.items()} | {
    0: Config.REJECTED,
    4: Config.PLANAR,
    5: Config.PLANAR,
}
_WAIT = 10.0  # seconds for another writer to finish
_MOVE = np.array([[1.0, 0.0, HALF], [0.0, 1.0, HALF], [0.0, 0.0, 1.0]])  # colmap_from_ours


def write_database(path: str | Path, tie_points: TiePoints, version: str = "4") -> Path:
    """Write tie points into a database, new or existing.

    Args:
        path: Images that it has keep their ids; what it holds of the images and pairs below is
            replaced; the rest stays.
        tie_points: Pairs without geometry are written raw: a mapper ignores them until verified.
        version: Of the schema, "3" or "4"; an existing database keeps its own.

    Returns:
        The path.

    Raises:
        ValueError: There is no such version.
        OSError: The file is locked by another program or cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _transaction(path) as connection:
        schema.create(connection, version)
        ids = _write_images(connection, tie_points)
        _write_keypoints(connection, tie_points, ids)
        _write_pairs(connection, tie_points, ids)
        connection.execute(
            "INSERT OR REPLACE INTO tiepoint VALUES ('pixels', ?)",
            (f"corner of the top-left pixel is (0, 0): {HALF} added to tiepoint's coordinates",),
        )
    return path


@contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise OSError(f"{path} cannot be written: {error}. {_remedy(str(error))}") from error


def _remedy(message: str) -> str:
    if "locked" in message:
        return (
            "Close the program that has it open; one writer at a time. Where there is none, choose "
            "a folder on a local disk: the locks of some networks fail"
        )
    return "Choose a folder on a local disk that may be written to"


def _write_images(connection: sqlite3.Connection, tie_points: TiePoints) -> dict[str, int]:
    """Write cameras and images; return the ids of the images by name."""
    known = {
        name: (image, camera)
        for image, name, camera in connection.execute(
            "SELECT image_id, name, camera_id FROM images"
        )
    }
    camera_ids: dict[int, int] = {}
    for name, index in zip(tie_points.names, tie_points.camera_of, strict=True):
        if name in known:
            camera_ids.setdefault(index, known[name][1])
    for index, camera in enumerate(tie_points.cameras):
        camera_ids[index] = _write_camera(connection, camera, camera_ids.get(index))
    for name, index in zip(tie_points.names, tie_points.camera_of, strict=True):
        row = {"name": name, "camera_id": camera_ids[index]}
        if name in known:
            row["image_id"] = known[name][0]
        _put(connection, "images", row, "image_id")
    ids = dict(connection.execute("SELECT name, image_id FROM images"))
    if schema.columns(connection, "frames"):
        for name, index in zip(tie_points.names, tie_points.camera_of, strict=True):
            _write_frame(connection, ids[name], camera_ids[index])
    return ids


def _write_camera(connection: sqlite3.Connection, camera: Camera, camera_id: int | None) -> int:
    row = {
        "model": MODELS[camera.model][0],
        "width": camera.width,
        "height": camera.height,
        "params": np.array(camera.params, np.float64).tobytes(),
        "prior_focal_length": int(camera.known),
    }
    if camera_id is not None:
        row["camera_id"] = camera_id
    return _put(connection, "cameras", row, "camera_id")


def _write_frame(connection: sqlite3.Connection, image_id: int, camera_id: int) -> None:
    """Write the rig of one camera and the frame of one image that version 4 wants."""
    rig = {"rig_id": camera_id, "ref_sensor_id": camera_id, "ref_sensor_type": schema.CAMERA}
    _put(connection, "rigs", rig, "rig_id")
    _put(connection, "frames", {"frame_id": image_id, "rig_id": camera_id}, "frame_id")
    connection.execute("DELETE FROM frame_data WHERE data_id = ?", (image_id,))
    data = {"frame_id": image_id, "data_id": image_id}
    _put(connection, "frame_data", data | {"sensor_id": camera_id, "sensor_type": schema.CAMERA})


def _write_keypoints(
    connection: sqlite3.Connection, tie_points: TiePoints, ids: Mapping[str, int]
) -> None:
    for name in tie_points.names:
        points = tie_points.keypoints[name].astype(np.float64) + HALF
        _put(
            connection,
            "keypoints",
            {"image_id": ids[name], **_blob(points, np.float32)},
            "image_id",
        )


def _write_pairs(
    connection: sqlite3.Connection, tie_points: TiePoints, ids: Mapping[str, int]
) -> None:
    """Replace all pairs among the images by those given."""
    ours = {ids[name] for name in tie_points.names}
    for table in ("matches", "two_view_geometries"):
        stale = [
            (pair,)
            for (pair,) in connection.execute(f"SELECT pair_id FROM {table}")
            if set(schema.image_ids(pair)) <= ours
        ]
        connection.executemany(f"DELETE FROM {table} WHERE pair_id = ?", stale)
    for pair, rows in tie_points.pairs.items():
        image_ids = ids[pair[0]], ids[pair[1]]
        key = schema.pair_id(*image_ids)
        turned = image_ids[0] > image_ids[1]
        stored = rows[:, ::-1] if turned else rows
        _put(connection, "matches", {"pair_id": key, **_blob(stored, np.uint32)})
        geometry = tie_points.geometries.get(pair)
        if geometry is not None:
            chosen = _blob(stored[geometry.inliers], np.uint32)
            row = {"pair_id": key, **chosen, **_geometry_row(geometry, turned)}
            _put(connection, "two_view_geometries", row)


def _geometry_row(geometry: TwoViewGeometry, turned: bool) -> dict[str, int | bytes | None]:
    """Write a geometry in COLMAP's pixels, from the image of the smaller id to the other."""
    fundamental, homography = geometry.fundamental, geometry.homography
    essential, pose = geometry.essential, geometry.pose
    back = np.linalg.inv(_MOVE)
    if fundamental is not None:
        fundamental = back.T @ (fundamental.T if turned else fundamental) @ back
    if homography is not None:
        homography = _MOVE @ (np.linalg.inv(homography) if turned else homography) @ back
    if essential is not None and turned:
        essential = essential.T
    if pose is not None and turned:
        pose = pose.inverse
    quaternion = None if pose is None else quaternion_of(pose.rotation)
    return {
        "config": _NUMBER[geometry.config],
        "F": _floats(fundamental),
        "E": _floats(essential),
        "H": _floats(homography),
        "qvec": _floats(quaternion),
        "tvec": _floats(None if pose is None else pose.translation),
    }


def quaternion_of(rotation: Matrix) -> Matrix:
    """Turn a rotation matrix into a unit quaternion (w, x, y, z) with w not negative.

    Source: I. Bar-Itzhack, New method for extracting the quaternion from a rotation matrix, 2000.
    """
    (a, b, c), (d, e, f), (g, h, i) = rotation
    symmetric = np.array(
        [
            [a + e + i, h - f, c - g, d - b],
            [h - f, a - e - i, b + d, c + g],
            [c - g, b + d, e - a - i, f + h],
            [d - b, c + g, f + h, i - a - e],
        ]
    )
    quaternion = np.linalg.eigh(symmetric)[1][:, -1]
    return np.asarray(quaternion if quaternion[0] >= 0 else -quaternion)


def rotation_of(quaternion: Matrix) -> Matrix:
    """Turn a quaternion (w, x, y, z) of any length into a rotation matrix."""
    w, x, y, z = quaternion / np.linalg.norm(quaternion)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _floats(matrix: Matrix | None) -> bytes | None:
    return None if matrix is None else np.ascontiguousarray(matrix, np.float64).tobytes()


def _blob(array: NDArray[np.generic], dtype: type) -> dict[str, int | bytes]:
    """Write (rows, cols) numbers in C order, whatever order they came in."""
    stored: NDArray[Any] = np.ascontiguousarray(array, dtype)
    return {"rows": stored.shape[0], "cols": stored.shape[1], "data": stored.tobytes()}


def _put(
    connection: sqlite3.Connection, table: str, row: Mapping[str, object], key: str = ""
) -> int:
    """Insert a row by column names; where the key is there already, update it instead."""
    names = ", ".join(row)
    holes = ", ".join("?" * len(row))
    statement = f"INSERT INTO {table} ({names}) VALUES ({holes})"
    if key in row:
        changes = ", ".join(f"{name} = excluded.{name}" for name in row if name != key)
        statement += f" ON CONFLICT({key}) DO UPDATE SET {changes}"
    cursor = connection.execute(statement, tuple(row.values()))
    known = row.get(key)
    return int(known if isinstance(known, int) else cursor.lastrowid or 0)


def read_database(path: str | Path) -> TiePoints:
    """Read the tie points of a database of version 3 or 4, written by any program.

    Scales and directions of keypoints, and descriptors, are passed over.

    Raises:
        FileNotFoundError: There is none.
        ValueError: Camera models or matches that cannot be, with the place.
        OSError: It is no database.
    """
    with (
        closing(schema.open_to_read(path)) as connection,
        refusing(path, "database of tie points"),
    ):
        cameras = _read_cameras(connection)
        images = list(connection.execute("SELECT image_id, name, camera_id FROM images ORDER BY 1"))
        index = {camera_id: number for number, camera_id in enumerate(cameras)}
        names = {image_id: name for image_id, name, _ in images}
        _check_references(connection, names, {camera: f"camera {camera}" for camera in cameras})
        return TiePoints(
            tuple(names.values()),
            tuple(cameras.values()),
            tuple(index[camera_id] for _, _, camera_id in images),
            _read_keypoints(connection, names),
            *_read_pairs(connection, names),
        )


def _check_references(
    connection: sqlite3.Connection, names: Mapping[int, str], cameras: Mapping[int, str]
) -> None:
    """Refuse rows of images and cameras that are not there."""
    for column, table, known in (
        ("camera_id", "images", cameras),
        ("image_id", "keypoints", names),
    ):
        for (found,) in connection.execute(f"SELECT {column} FROM {table}"):
            if found not in known:
                raise ValueError(f"{table} name {column} {found!r}, which is not there")
    for table in ("matches", "two_view_geometries"):
        for (pair,) in connection.execute(f"SELECT pair_id FROM {table}"):
            if not set(schema.image_ids(pair)) <= names.keys():
                raise ValueError(f"{table} name a pair of images {schema.image_ids(pair)}")


def _read_cameras(connection: sqlite3.Connection) -> dict[int, Camera]:
    models = {number: name for name, (number, _, _) in MODELS.items()}
    found = {}
    for camera_id, model, width, height, params, known in connection.execute(
        "SELECT camera_id, model, width, height, params, prior_focal_length FROM cameras ORDER BY 1"
    ):
        if model not in models:
            raise ValueError(f"camera {camera_id} has model {model}, which is not supported")
        values = tuple(np.frombuffer(params, np.float64).tolist())
        found[camera_id] = Camera(models[model], width, height, values, bool(known))
    return found


def _read_keypoints(
    connection: sqlite3.Connection, names: Mapping[int, str]
) -> dict[str, NDArray[np.float32]]:
    found = {}
    for image_id, rows, cols, data in connection.execute(
        "SELECT image_id, rows, cols, data FROM keypoints"
    ):
        values = np.frombuffer(data or b"", np.float32).reshape(rows, cols)[:, :2]
        found[names[image_id]] = (values.astype(np.float64) - HALF).astype(np.float32)
    return found


def _read_pairs(
    connection: sqlite3.Connection, names: Mapping[int, str]
) -> tuple[dict[NamePair, NDArray[np.int64]], dict[NamePair, TwoViewGeometry]]:
    """Read raw matches and geometries; verified matches that are not among the raw ones join them."""
    raw = {}
    for key, rows, data in connection.execute("SELECT pair_id, rows, data FROM matches"):
        image0, image1 = schema.image_ids(key)
        raw[names[image0], names[image1]] = _indices(data, rows)
    geometries = {}
    for key, rows, data, config, *matrices in connection.execute(
        "SELECT pair_id, rows, data, config, F, E, H, qvec, tvec FROM two_view_geometries"
    ):
        image0, image1 = schema.image_ids(key)
        pair = names[image0], names[image1]
        chosen = _indices(data, rows)
        listed = raw.get(pair, chosen[:0])
        known = {tuple(row) for row in listed.tolist()}
        more = [row for row in chosen.tolist() if tuple(row) not in known]
        raw[pair] = np.concatenate([listed, np.array(more, np.int64).reshape(-1, 2)])
        verified = {tuple(row) for row in chosen.tolist()}
        inliers = np.array([tuple(row) in verified for row in raw[pair].tolist()], bool)
        geometries[pair] = _geometry(config, inliers, matrices)
    return raw, geometries


def _geometry(
    number: int, inliers: NDArray[np.bool_], matrices: list[bytes | None]
) -> TwoViewGeometry:
    fundamental, essential, homography = (
        None if each is None else np.frombuffer(each, np.float64).reshape(3, 3)
        for each in matrices[:3]
    )
    quaternion, translation = (
        None if each is None else np.frombuffer(each, np.float64) for each in matrices[3:]
    )
    posed = quaternion is not None and translation is not None and bool(np.any(quaternion))
    back = np.linalg.inv(_MOVE)
    config = _CONFIG.get(number, Config.UNCALIBRATED)
    return TwoViewGeometry(
        inliers,
        config,
        Rejection.FEW_INLIERS if config is Config.REJECTED else Rejection.NONE,
        None if fundamental is None else _MOVE.T @ fundamental @ _MOVE,
        None if homography is None else back @ homography @ _MOVE,
        essential,
        Pose(rotation_of(quaternion), np.array(translation)) if posed else None,  # type: ignore[arg-type]
    )


def _indices(data: bytes | None, rows: int) -> NDArray[np.int64]:
    return np.frombuffer(data or b"", np.uint32).reshape(rows, 2).astype(np.int64)
