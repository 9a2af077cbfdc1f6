"""Any picture becomes one form: range, orientation, channels, layout; pixels are kept count of."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage
from PIL import ImageOps

from matcher import decoding, extras, images


@pytest.fixture
def colours():
    return np.random.default_rng(5).integers(0, 256, (48, 64, 3), dtype=np.uint8)


def encode(picture, form="PNG", **options):
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def tagged(array, orientation, form="PNG"):
    exif = PilImage.Exif()
    exif[0x0112] = orientation
    return encode(PilImage.fromarray(array), form, exif=exif)


# IMG-01
@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_read_upright_and_maps_points_back_exactly(colours, form, orientation):
    data = tagged(colours, orientation, form)
    reference = np.asarray(ImageOps.exif_transpose(PilImage.open(io.BytesIO(data))))
    points = np.random.default_rng(0).uniform(0, 47, (50, 2)).astype(np.float32)

    upright, raw = images.load(data), images.load(data, policy="raw")

    np.testing.assert_array_equal(upright.image, reference / np.float32(255))
    np.testing.assert_array_equal(images.read(data), upright.image)
    np.testing.assert_array_equal(images.values(data), reference)
    assert upright.orientation == raw.orientation == orientation
    assert raw.image.shape == (48, 64, 3)
    for picture in (upright, raw):
        there = picture.upright_from_raw(points)
        np.testing.assert_array_equal(picture.raw_from_upright(there), points)
        x, y = there.round().astype(int).T
        raw_x, raw_y = picture.raw_from_upright(there.round()).astype(int).T
        np.testing.assert_array_equal(upright.image[y, x], raw.image[raw_y, raw_x])


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_orientations_that_do_not_exist_are_ignored(colours, orientation):
    assert images.load(tagged(colours, orientation)).orientation == 1


def test_unknown_policy_is_refused(colours):
    with pytest.raises(ValueError, match="no policy 'sideways'; there are raw, upright"):
        images.load(colours, policy="sideways")


# IMG-02
def test_paths_of_any_letters_are_read(tmp_path, colours):
    path = tmp_path / "t ést" / "你 好 #1 'x'.png"
    path.parent.mkdir()
    PilImage.fromarray(colours).save(path)

    for source in (path, str(path)):
        np.testing.assert_array_equal(images.read(source), images.read(colours))


# IMG-03
def test_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*absent\.png"):
        images.read(tmp_path / "absent.png")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.png", b"", "it is empty"),
        ("text.png", b"not a picture at all", "it is no image of a known format"),
        ("header.png", b"\x89PNG\r\n\x1a\n", "cannot be read"),
    ],
)
def test_files_that_are_no_images_are_named_with_the_reason(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(images.ImageError, match=rf"{name}.*{reason}"):
        images.read(tmp_path / name)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_truncated_files_are_refused(tmp_path, colours, form):
    data = encode(PilImage.fromarray(colours), form)
    path = tmp_path / "cut"
    path.write_bytes(data[: int(0.6 * len(data))])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL warns of a cut TIFF before it raises
        with pytest.raises(images.ImageError, match="cut cannot be read"):
            images.read(path)


def test_folders_are_refused(tmp_path):
    with pytest.raises(images.ImageError, match="is a folder, not an image"):
        images.read(tmp_path)


def test_decompression_bombs_are_refused(monkeypatch, colours):
    monkeypatch.setattr(PilImage, "MAX_IMAGE_PIXELS", 100)

    with pytest.raises(images.ImageError, match="PIL.Image.MAX_IMAGE_PIXELS"):
        images.read(encode(PilImage.fromarray(colours)))


# IMG-04
def test_modes_of_one_grey_pattern_agree_and_alpha_is_a_mask(texture):
    grey = texture(40, 40)
    picture = PilImage.fromarray(grey)
    modes = [picture, *(picture.convert(mode) for mode in ("LA", "RGB", "RGBA", "P", "CMYK", "I"))]
    faded = np.dstack([grey] * 3 + [np.where(np.arange(40) < 20, 0, 255)[None].repeat(40, 0)])

    for source in [*modes, *(encode(mode) for mode in modes if mode.mode not in ("CMYK", "I"))]:
        read = images.grey(images.read(source))
        np.testing.assert_allclose(read, grey / 255, atol=1.01 / 255)
    loaded = images.load(faded.astype(np.uint8))

    np.testing.assert_allclose(images.grey(loaded.image), grey / 255, atol=1e-6)
    np.testing.assert_array_equal(loaded.mask, faded[:, :, 3] > 127)
    assert images.load(grey).mask is None


def test_transparent_colour_of_a_palette_becomes_the_mask():
    picture = PilImage.fromarray(np.array([[0, 1], [1, 0]], np.uint8), "L").convert("P")
    data = encode(picture, transparency=0)

    mask = images.load(data).mask

    assert mask is not None
    assert mask.shape == (2, 2)


def test_one_bit_images_are_black_and_white():
    bits = np.array([[True, False], [False, True]])

    for source in (bits, PilImage.fromarray(bits), encode(PilImage.fromarray(bits))):
        np.testing.assert_array_equal(images.read(source), bits.astype(np.float32))


# IMG-05
def test_every_depth_of_one_picture_reads_alike(texture):
    grey = texture(128, 128)
    wanted = images.read(grey)

    for source in (
        grey / np.float32(255),
        grey / 255.0,
        grey.astype(np.uint16) * 257,
        grey.astype(np.int32),
        grey.astype(np.int64),
        grey.astype(np.uint64),
    ):
        np.testing.assert_allclose(images.read(source), wanted, atol=1e-7)
    np.testing.assert_allclose(images.read((grey / 255).astype(np.float16)), wanted, atol=1e-3)
    np.testing.assert_array_equal(images.read(grey.astype(np.float32), white=255), wanted)


@pytest.mark.parametrize(
    "pixels", [np.array([[0.0, 255.0]]), np.array([[-0.5, 1.0]]), np.array([[0, 256]], np.int32)]
)
def test_values_out_of_range_say_what_to_do(pixels):
    with pytest.raises(images.ImageError, match=r"values from .*: scale them, or pass .* white="):
        images.read(pixels)


def test_negative_integers_are_out_of_range():
    with pytest.raises(images.ImageError, match="int16 values from -3 to 7, not from 0 to 32767"):
        images.read(np.array([[-3, 7]], np.int16))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_pixels_without_a_number_are_refused_and_kept_by_values(bad):
    pixels = np.array([[0.5, bad]])

    with pytest.raises(images.ImageError, match="NaN or infinite pixels: fill them"):
        images.read(pixels)
    np.testing.assert_array_equal(images.values(pixels), pixels)


def test_rounding_beyond_the_range_is_clipped():
    read = images.read(np.array([[-1e-6, 1 + 1e-6]]))

    np.testing.assert_array_equal(read, [[0, 1]])


def test_sixteen_and_twelve_bits_keep_their_steps(tmp_path):
    ramp = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    twelve = encode(PilImage.fromarray(ramp), "PNG")

    assert len(np.unique(images.read(twelve))) == 4096
    np.testing.assert_allclose(images.read(twelve), ramp / 65535, atol=1e-7)
    np.testing.assert_allclose(images.read(twelve, white=4095), ramp / 4095, atol=1e-7)
    np.testing.assert_array_equal(images.values(twelve), ramp)


@pytest.mark.parametrize("ending", [".png", ".tiff", ".ppm"])
def test_sixteen_bit_colours_are_not_cut_to_eight(ending):
    cv2 = pytest.importorskip("cv2")
    deep = np.random.default_rng(2).integers(0, 65536, (9, 11, 3)).astype(np.uint16)
    data = cv2.imencode(ending, deep[:, :, ::-1])[1].tobytes()

    np.testing.assert_allclose(images.read(data), deep / 65535, atol=1e-7)


def test_sixteen_bit_colours_without_opencv_say_what_to_install(monkeypatch):
    cv2 = pytest.importorskip("cv2")
    data = cv2.imencode(".png", np.zeros((4, 4, 3), np.uint16))[1].tobytes()

    def absent(package, wanted_for):
        raise ImportError(f"{wanted_for} needs {package}: {extras.install_command(package)}")

    monkeypatch.setattr(decoding, "require", absent)
    with pytest.raises(ImportError, match=r"16-bit colours, needs cv2: pip install 'tiepoint\["):
        images.read(data)


# IMG-06
def test_every_layout_of_one_picture_reads_alike(tmp_path, texture):
    grey = texture(80, 96)
    colour = np.dstack([grey, grey[::-1], grey[:, ::-1]])
    path = tmp_path / "picture.png"
    PilImage.fromarray(colour).save(path)
    first = torch.from_numpy(colour.copy()).permute(2, 0, 1)

    wanted = images.read(colour)

    for source in (
        path,
        PilImage.open(path),
        first,
        first[None],
        first / 255,
        first.double() / 255,
    ):
        np.testing.assert_allclose(images.read(source), wanted, atol=1e-7)
    for source in (grey[:, :, None], torch.from_numpy(grey), torch.from_numpy(grey)[None]):
        np.testing.assert_array_equal(images.read(source), images.read(grey))
    half = images.read((first / 255).to(torch.bfloat16).requires_grad_())
    np.testing.assert_allclose(half, wanted, atol=4e-3)


def test_three_rows_are_an_array_of_rgb_and_three_planes_of_a_tensor():
    numbers = np.random.default_rng(0).uniform(size=(3, 7, 3)).astype(np.float32)

    np.testing.assert_array_equal(images.read(numbers), numbers)
    np.testing.assert_array_equal(
        images.read(torch.from_numpy(numbers)), np.moveaxis(numbers, 0, 2)
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((3, 80, 96)), r"array must be .*not \(3, 80, 96\); np.moveaxis"),
        (np.zeros((2, 3, 80, 96)), r"array must be .*not \(2, 3, 80, 96\)"),
        (torch.zeros(2, 3, 80, 96), r"tensor must be .*not \(2, 3, 80, 96\)"),
        (torch.zeros(80, 96, 3), r"tensor must be .*not \(80, 96, 3\)"),
        (np.zeros((0, 4)), r"no pixels: its shape is \(0, 4\)"),
        (np.zeros((4, 4), complex), "real numbers, not complex128"),
    ],
)
def test_other_layouts_are_refused_with_both_shapes(source, message):
    with pytest.raises(images.ImageError, match=message):
        images.read(source)


def test_what_is_no_image_is_refused():
    with pytest.raises(TypeError, match="path, PIL image, numpy array or torch tensor, not dict"):
        images.read({})
    with pytest.raises(TypeError, match="not NoneType .*cv2.imread returns None"):
        images.read(None)


# IMG-07
def test_strides_do_not_matter_and_inputs_stay_as_they_are(texture):
    grey = texture(120, 160)
    read_only = grey.copy()
    read_only.setflags(write=False)
    unit = (grey / 255).astype(np.float32)

    for view in (
        grey[::-1],
        grey[:, ::-1],
        grey.T,
        grey[10:110, 20:140],
        grey[::2, ::2],
        np.asfortranarray(grey),
        read_only,
    ):
        result = images.read(view)
        np.testing.assert_array_equal(result, images.read(view.copy()))
        assert result.flags.c_contiguous
        assert result.flags.writeable
    for door in (images.read, images.values):
        result = door(unit)
        result[:] = 0
        assert unit.max() == 1


# IMG-08
def test_grey_weighs_red_green_and_blue():
    primary = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [255, 255, 255]]], np.uint8)

    for source in (primary, encode(PilImage.fromarray(primary))):
        grey = images.grey(images.read(source)) * 255
        np.testing.assert_allclose(grey, [[76, 150], [29, 255]], atol=1)


def test_grey_refuses_other_shapes():
    with pytest.raises(ValueError, match=r"image must be \(H, W\) or \(H, W, 3\), not \(4, 4, 2\)"):
        images.grey(np.zeros((4, 4, 2), np.float32))


# IMG-09
def test_folders_are_listed_whole_in_natural_order_with_reasons_for_what_is_skipped(tmp_path):
    picture = PilImage.new("L", (4, 4))
    names = ["a.JPG", "b.jpeg", "c.PNG", "d.TIF", *(f"frame{n}.png" for n in range(1, 13))]
    (tmp_path / "sub").mkdir()
    for name in [*names, ".e.jpg", "sub/f.webp"]:
        picture.save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")

    found, skipped = images.list_images(tmp_path)
    deep, _ = images.list_images(str(tmp_path), recursive=True)

    assert [path.name for path in found] == names
    assert {path.name: reason for path, reason in skipped.items()} == {
        ".e.jpg": "hidden",
        "notes.txt": "it is no image of a known format",
        "sub": "a folder: recursive=True looks inside",
    }
    assert [path.name for path in deep] == [*names, "f.webp"]
    with pytest.raises(NotADirectoryError, match="notes.txt is not a folder"):
        images.list_images(tmp_path / "notes.txt")


def test_masks_are_true_where_bright():
    np.testing.assert_array_equal(
        images.read_mask(np.array([[0, 127, 128, 255]], np.uint8)), [[False, False, True, True]]
    )


@pytest.mark.parametrize("size", [(30, 40), (97, 53), (240, 320)])
def test_resizing_keeps_places_by_the_half_pixel_rule(size):
    y, x = np.mgrid[0:120, 0:160].astype(np.float32)
    ramp = np.dstack([x / 200, y / 200, np.full_like(x, 0.5)])
    grid = np.stack(np.meshgrid([40, 80, 110], [30, 60, 90]), -1).reshape(-1, 2).astype(np.float32)

    resized = images.resize(ramp, size)
    points = images.resize_points(grid, (120, 160), size)

    column, row = points.round().astype(int).T
    back = images.resize_points(np.stack([column, row], 1), size, (120, 160))
    np.testing.assert_allclose(resized[row, column, 0] * 200, back[:, 0], atol=0.02)
    np.testing.assert_allclose(resized[row, column, 1] * 200, back[:, 1], atol=0.02)
    np.testing.assert_allclose(images.resize_points(points, size, (120, 160)), grid, atol=1e-4)


def test_shrinking_does_not_alias():
    checks = (np.indices((64, 64)).sum(0) % 2).astype(np.float32)

    np.testing.assert_allclose(images.resize(checks, (16, 16))[2:-2, 2:-2], 0.5, atol=0.01)
    np.testing.assert_array_equal(images.resize(checks, (64, 64)), checks)


def test_masks_are_resized_by_the_nearest_pixel():
    mask = np.zeros((4, 6), bool)
    mask[1, 2] = True

    double = images.resize_mask(mask, (8, 12))

    np.testing.assert_array_equal(double, mask.repeat(2, 0).repeat(2, 1))
    np.testing.assert_array_equal(images.resize_mask(double, (4, 6)), mask)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 2000))
def test_fitting_the_long_side_only_shrinks(height, width, side):
    fitted = images.fit_long_side((height, width), side)

    assert max(fitted) == min(side, max(height, width))
    assert min(fitted) >= 1


@pytest.mark.parametrize("shape", [(17, 30), (17, 30, 3), (32, 32)])
def test_padding_reaches_the_multiple_and_leaves_pixels_in_place(shape):
    image = np.random.default_rng(0).uniform(size=shape).astype(np.float32)

    padded = images.pad_to_multiple(image, 16)

    assert padded.shape == (32, 32, *shape[2:])
    np.testing.assert_array_equal(padded[: shape[0], : shape[1]], image)
    assert padded[shape[0] :].sum() == 0
