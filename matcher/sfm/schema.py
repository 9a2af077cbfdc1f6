"""The tables of COLMAP's database, of its versions 3 and 4, and what numbers mean in them.

Source: the format as COLMAP's documentation and the files that it writes show it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

LATEST = 2147483647  # what pair ids count with: larger than any image id
CAMERA = 0  # sensor type
CONFIGS = {  # two_view_geometries.config
    0: "undefined",
    1: "degenerate",
    2: "calibrated",
    3: "uncalibrated",
    4: "planar",
    5: "panoramic",
    6: "planar or panoramic",
    7: "watermark",
    8: "multiple",
    9: "calibrated rig",
}
# Tables whose rows are computed by SQL that the file brings: views, virtual tables
_MADE_UP = """
SELECT name FROM sqlite_master WHERE type = 'view' OR sql LIKE 'CREATE VIRTUAL%' OR type = 'trigger'
"""
_USER_VERSION = {"3": 3900, "4": 4020100}

_COMMON = """
CREATE TABLE IF NOT EXISTS cameras(camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    model INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB,
    prior_focal_length INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS images(image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    name TEXT NOT NULL UNIQUE, camera_id INTEGER NOT NULL,
    CONSTRAINT image_id_check CHECK(image_id >= 0 and image_id < 2147483647),
    FOREIGN KEY(camera_id) REFERENCES cameras(camera_id));
CREATE UNIQUE INDEX IF NOT EXISTS index_name ON images(name);
CREATE TABLE IF NOT EXISTS keypoints(image_id INTEGER PRIMARY KEY NOT NULL,
    rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB,
    FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE);
CREATE TABLE IF NOT EXISTS matches(pair_id INTEGER PRIMARY KEY NOT NULL,
    rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB);
CREATE TABLE IF NOT EXISTS tiepoint(key TEXT PRIMARY KEY, value TEXT);
"""
_VERSION_3 = """
CREATE TABLE IF NOT EXISTS descriptors(image_id INTEGER PRIMARY KEY NOT NULL,
    rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB,
    FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE);
CREATE TABLE IF NOT EXISTS two_view_geometries(pair_id INTEGER PRIMARY KEY NOT NULL,
    rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB, config INTEGER NOT NULL,
    F BLOB, E BLOB, H BLOB, qvec BLOB, tvec BLOB);
"""
_VERSION_4 = """
CREATE TABLE IF NOT EXISTS descriptors(image_id INTEGER PRIMARY KEY NOT NULL,
    type INTEGER NOT NULL, rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB,
    FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE);
CREATE TABLE IF NOT EXISTS two_view_geometries(pair_id INTEGER PRIMARY KEY NOT NULL,
    rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB, config INTEGER NOT NULL,
    F BLOB, E BLOB, H BLOB, qvec BLOB, tvec BLOB, camera1 BLOB, camera2 BLOB);
CREATE TABLE IF NOT EXISTS rigs(rig_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    ref_sensor_id INTEGER NOT NULL, ref_sensor_type INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS rig_ref_sensor_assignment
    ON rigs(ref_sensor_id, ref_sensor_type);
CREATE TABLE IF NOT EXISTS rig_sensors(rig_id INTEGER NOT NULL, sensor_id INTEGER NOT NULL,
    sensor_type INTEGER NOT NULL, sensor_from_rig BLOB,
    FOREIGN KEY(rig_id) REFERENCES rigs(rig_id) ON DELETE CASCADE);
CREATE UNIQUE INDEX IF NOT EXISTS rig_sensor_assignment ON rig_sensors(sensor_id, sensor_type);
CREATE TABLE IF NOT EXISTS frames(frame_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    rig_id INTEGER NOT NULL, FOREIGN KEY(rig_id) REFERENCES rigs(rig_id) ON DELETE CASCADE);
CREATE TABLE IF NOT EXISTS frame_data(frame_id INTEGER NOT NULL, data_id INTEGER NOT NULL,
    sensor_id INTEGER NOT NULL, sensor_type INTEGER NOT NULL,
    FOREIGN KEY(frame_id) REFERENCES frames(frame_id) ON DELETE CASCADE);
CREATE UNIQUE INDEX IF NOT EXISTS frame_sensor_assignment ON frame_data(data_id, sensor_type);
CREATE TABLE IF NOT EXISTS pose_priors(pose_prior_id INTEGER PRIMARY KEY NOT NULL,
    corr_data_id INTEGER NOT NULL, corr_sensor_id INTEGER NOT NULL,
    corr_sensor_type INTEGER NOT NULL, position BLOB, position_covariance BLOB, gravity BLOB,
    coordinate_system INTEGER NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS pose_prior_data_assignment
    ON pose_priors(corr_data_id, corr_sensor_id, corr_sensor_type);
"""
_TABLES = {"3": _COMMON + _VERSION_3, "4": _COMMON + _VERSION_4}


def versions() -> tuple[str, ...]:
    """List the versions that can be written."""
    return tuple(_TABLES)


def create(connection: sqlite3.Connection, version: str) -> None:
    """Make the tables that are missing, inside the caller's transaction.

    Args:
        connection: With a transaction begun.
        version: "3" or "4"; an existing database keeps its own.

    Raises:
        ValueError: There is no such version.
    """
    if version not in _TABLES:
        raise ValueError(f"no schema {version!r}; there are {', '.join(_TABLES)}")
    new = not columns(connection, "images")
    existing = "4" if columns(connection, "frames") else "3"
    chosen = version if new else existing
    for statement in _TABLES[chosen].split(";\n"):
        connection.execute(statement)
    if new:
        connection.execute(f"PRAGMA user_version = {_USER_VERSION[version]}")


def columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """List the columns of a table; none where there is no such table."""
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def pair_id(image_id0: int, image_id1: int) -> int:
    """Number a pair: the smaller id counts in steps of `LATEST`.

    Raises:
        ValueError: An id is out of range, or both are the same.
    """
    low, high = sorted((image_id0, image_id1))
    if not 0 < low < high < LATEST:
        raise ValueError(f"image ids must be two of 1 ... {LATEST - 1}, not {low} and {high}")
    return LATEST * low + high


def image_ids(pair: int) -> tuple[int, int]:
    """Return the two image ids of a pair's number, the smaller first."""
    return divmod(pair, LATEST)


def open_to_read(path: str | Path) -> sqlite3.Connection:
    """Open a database so that nothing can be written and no lock is left.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no database {path}")
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        connection.execute("PRAGMA trusted_schema = OFF")
        # no value is longer than the file: what SQL in the file makes up is refused
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(2**20, path.stat().st_size))
        made = connection.execute(_MADE_UP).fetchone()
    except sqlite3.Error as error:
        raise OSError(f"{path} is no database that can be read: {error}") from error
    if made:
        raise OSError(f"{path} is no database that can be read: {made[0]} is no plain table")
    return connection
