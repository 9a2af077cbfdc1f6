"""Frames of a video as a folder of images."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from matcher import cli
from matcher.sfm import video as videos
from matcher.sfm.video import write_frames

cv2 = pytest.importorskip("cv2")


@pytest.fixture
def video(tmp_path, texture):
    """Seven frames, of which number i is moved by 3 i pixels; stored without loss."""
    path, picture = tmp_path / "walk.avi", texture(120, 190, sigma=2.0)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"FFV1"), 30, (160, 120))
    for number in range(7):
        grey = picture[:, 3 * number : 3 * number + 160]
        writer.write(np.repeat(grey[..., None], 3, axis=2))
    writer.release()
    return path


def test_one_of_every_so_many_frames_is_written_as_it_was(video, tmp_path, texture):
    folder = write_frames(video, tmp_path / "out/images", 3)

    files = sorted(path.name for path in folder.glob("*.png"))
    assert files == ["000000.png", "000003.png", "000006.png"]
    frame = np.array(Image.open(folder / "000003.png"))
    wanted = texture(120, 190, sigma=2.0)[:, 9:169]
    assert np.abs(frame.astype(int) - wanted[..., None]).max() <= 2  # colours are converted
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["images"]


def test_frames_are_written_once_and_never_mixed(video, tmp_path, monkeypatch):
    folder = write_frames(video, tmp_path / "images", 3)
    monkeypatch.setattr(videos, "frames", None)

    assert write_frames(video, folder, 3) == folder
    with pytest.raises(ValueError, match="images holds other things than frames of walk.avi, one"):
        write_frames(video, folder, 2)
    with pytest.raises(ValueError, match="every must be at least 1, not 0"):
        write_frames(video, folder, 0)


def test_a_stopped_run_leaves_nothing_that_is_taken_for_all(video, tmp_path, monkeypatch):
    def stop(_):
        yield np.zeros((8, 8), np.float32)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(videos, "frames", stop)
        with pytest.raises(KeyboardInterrupt):
            write_frames(video, tmp_path / "images")

    assert not (tmp_path / "images").exists()
    assert len(list(write_frames(video, tmp_path / "images", 1).glob("*.png"))) == 7


def test_a_video_without_frames_is_said(video, tmp_path, monkeypatch):
    monkeypatch.setattr(videos, "frames", lambda _: iter(()))

    with pytest.raises(ValueError, match="walk.avi has no frames"):
        write_frames(video, tmp_path / "images")


def test_the_command_takes_a_video(video, tmp_path, capsys):
    out = tmp_path / "out"
    more = ["--method", "ncc", "-o", "max_keypoints=150", "--device", "cpu", "--mapper", "none"]

    assert cli.run(["sfm", str(video), "--out", str(out), "--every", "3", *more]) == 0

    assert "pairs: 3 verified" in capsys.readouterr().out
    assert '"kind": "sequential"' in (out / "run.json").read_text()
