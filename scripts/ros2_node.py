"""A ROS 2 node that follows the points of a camera: images in, tracks and a transform out.

    python scripts/ros2_node.py --ros-args -p budget_ms:=50.0

Subscribes `image` (sensor_msgs/Image: mono8, mono16, rgb8, bgr8, rgba8, bgra8) and `camera_info`
(sensor_msgs/CameraInfo, plumb_bob or no distortion); publishes `tracks` (std_msgs/String: one line
of JSON a frame). With a camera_info frames have poses against their anchors, else homographies.
Frames that come while one is at work are dropped, the newest is taken: a late answer is none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import matcher
from matcher.commands.watching import record
from matcher.tracking.tracker import Camera, Options

CHANNELS = {"mono8": 1, "8uc1": 1, "mono16": 1, "16uc1": 1, "rgb8": 3, "bgr8": 3, "8uc3": 3,
            "rgba8": 4, "bgra8": 4}  # fmt: skip


def decode(message: Any) -> NDArray[np.uint8] | NDArray[np.uint16]:
    """Turn a sensor_msgs/Image into an array (H, W) or (H, W, 3) RGB.

    Raises:
        ValueError: The encoding is not known, or the data are not as long as it says.
    """
    encoding = message.encoding.lower()
    if encoding not in CHANNELS:
        raise ValueError(f"no encoding {message.encoding!r}; there are {', '.join(CHANNELS)}")
    deep = "16" in encoding
    kind = np.dtype(np.uint16 if deep else np.uint8)
    if deep:
        kind = kind.newbyteorder(">" if message.is_bigendian else "<")
    data = np.frombuffer(bytes(message.data), np.uint8)
    if len(data) < message.height * message.step:
        raise ValueError(f"an image of {message.height} rows of {message.step} bytes is cut short")
    rows = data[: message.height * message.step].reshape(message.height, message.step)
    wide = message.width * CHANNELS[encoding] * kind.itemsize
    pixels = np.ascontiguousarray(rows[:, :wide]).view(kind)
    pixels = pixels.reshape(message.height, message.width, CHANNELS[encoding])
    if encoding.startswith(("bgr", "8uc3")):
        pixels = pixels[:, :, [2, 1, 0]]
    native = pixels[:, :, :3].astype(kind.newbyteorder("="))
    return native[:, :, 0] if CHANNELS[encoding] == 1 else native


def camera_of(message: Any) -> Camera:
    """Read a sensor_msgs/CameraInfo.

    Raises:
        ValueError: The lens is of a kind that is not known here.
    """
    if any(message.d) and message.distortion_model not in ("plumb_bob", "rational_polynomial", ""):
        raise ValueError(f"no distortion model {message.distortion_model!r}; there is plumb_bob")
    if any(message.d[5:]):
        raise ValueError("only k1, k2, p1, p2, k3 of the lens are known here")
    return Camera(np.reshape(message.k, (3, 3)), [float(value) for value in message.d[:5]])


class Follower:
    """What the node does, without ROS: a message in, a line of JSON out."""

    def __init__(self, method: str = "superglue", budget_ms: float | None = None) -> None:
        self._method = matcher.create(method, refine=False, turns=False)
        self._options = Options(budget_ms=budget_ms)
        self._tracker = matcher.Tracker(self._method, self._options)

    def calibrate(self, message: Any) -> None:
        """Take a camera_info; another camera begins afresh."""
        camera, known = camera_of(message), self._tracker.camera
        if known is None or not _alike(camera, known):
            self._tracker = matcher.Tracker(self._method, self._options, camera=camera)

    def follow(self, message: Any) -> str:
        """Follow the points into an image: a line of JSON with its time."""
        tracked = record(self._tracker.track(decode(message)))
        stamp = message.header.stamp
        return json.dumps({"stamp": [stamp.sec, stamp.nanosec], **tracked})


def _alike(camera: Camera, other: Camera) -> bool:
    return np.array_equal(camera.intrinsics, other.intrinsics) and list(camera.distortion) == list(
        other.distortion
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the node until it is stopped.

    Raises:
        SystemExit: ROS 2 is not here.
    """
    try:
        import rclpy  # noqa: PLC0415
        from rclpy.node import Node  # noqa: PLC0415
        from rclpy.qos import QoSProfile, ReliabilityPolicy  # noqa: PLC0415
        from sensor_msgs.msg import CameraInfo, Image  # noqa: PLC0415
        from std_msgs.msg import String  # noqa: PLC0415
    except ImportError as error:
        raise SystemExit(f"ROS 2 is not here ({error}): source its setup file first") from error
    rclpy.init(args=None if arguments is None else list(arguments))
    node = Node("tiepoint")
    method = node.declare_parameter("method", "superglue").value
    budget = float(node.declare_parameter("budget_ms", 0.0).value)
    follower = Follower(method, budget or None)
    tracks = node.create_publisher(String, "tracks", 10)
    node.create_subscription(CameraInfo, "camera_info", follower.calibrate, 1)
    node.create_subscription(
        Image,
        "image",
        lambda message: tracks.publish(String(data=follower.follow(message))),
        QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT),
    )
    try:
        rclpy.spin(node)
    finally:
        node.destroy_node()
        rclpy.shutdown()


if __name__ == "__main__":
    main()
