"""Promises of training: right labels, a loss that is always a number, runs that survive a kill."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch

from matcher import assets, features, methods
from matcher.cli import run as command
from matcher.nn.pointsets import PointSet
from matcher.synthesis import homographies, light
from matcher.synthesis.photographs import Photographs
from matcher.synthesis.views import TwoViews, pixel_grid
from matcher.training import models, settings, tokens, validation
from matcher.training.labels import label
from matcher.training.loop import Run, schedule
from matcher.training.objectives import Judged, Objective, surprise
from matcher.training.samples import Samples, with_seed
from matcher.training.settings import Mix, Settings
from matcher.training.validation import Figures

SMALL = Settings(
    minutes=1e6, steps=4, batch=2, sizes=((64, 96),), tokens=48, seed=1, save_minutes=0.0
)


@pytest.fixture(scope="module")
def photographs() -> Photographs:
    paths = sorted((assets.folder("data") / "photos").glob("*.jpg"))[:3]
    return Photographs.read(paths, long_side=200)


def small(name: str, **changes) -> models.Model:
    model = models.load(name, again=True)
    chosen = replace(SMALL, near=model.settings.near, far=model.settings.far, **changes)
    model.objective.settings = model.objective.trainable.settings = chosen
    return replace(model, settings=chosen)


def standing(count: int = 1, height: int = 32, width: int = 48) -> TwoViews:
    """Pairs of twice the same image."""
    image = torch.rand((count, 1, height, width), generator=torch.Generator().manual_seed(0))
    places = pixel_grid(height, width, torch.device("cpu"))[None].expand(count, -1, -1, -1)
    return TwoViews(image, image, places, places, torch.ones(count, dtype=torch.bool))


def points(*places: tuple[float, float]) -> PointSet:
    """One image's keypoints."""
    where = torch.tensor([places], dtype=torch.float32)
    count = len(places)
    return PointSet(
        where, torch.ones(1, count), torch.zeros(1, count, 64), torch.tensor([[48.0, 32.0]])
    )


def test_the_same_points_are_partners_and_far_ones_alone():
    image0 = points((5, 5), (20, 10), (40, 20))
    image1 = points((20, 11), (5, 5), (30, 30))

    labels = label(standing(), image0, image1, near=3, far=5)

    assert list(zip(labels.index0.tolist(), labels.index1.tolist(), strict=True)) == [
        (0, 1),
        (1, 0),
    ]
    assert labels.alone0.tolist() == [[False, False, True]]
    assert labels.alone1.tolist() == [[False, False, True]]
    torch.testing.assert_close(labels.places0, image0.points)


def test_between_near_and_far_nobody_knows():
    labels = label(standing(), points((20, 10)), points((24, 10)), near=3, far=5)

    assert len(labels.item) == 0
    assert not labels.alone0.any()
    assert not labels.alone1.any()


def test_where_places_were_measured_nothing_is_known_to_be_alone():
    views = replace(standing(), complete=torch.zeros(1, dtype=torch.bool))

    labels = label(views, points((5, 5), (40, 20)), points((5, 5)), near=3, far=5)

    assert labels.index0.tolist() == [0]
    assert not labels.alone0.any()


def test_padding_is_neither_partner_nor_alone():  # CTF-11
    image0 = replace(points((5, 5), (5, 5)), mask=torch.tensor([[True, False]]))

    labels = label(standing(), image0, points((5, 5)), near=3, far=5)

    assert labels.index0.tolist() == [0]
    assert not labels.alone0.any()


def test_a_change_of_scale_does_not_change_who_is_a_partner():
    small_places = pixel_grid(32, 48, torch.device("cpu"))[None] / 4
    large_places = torch.where(
        (pixel_grid(32, 48, torch.device("cpu")) < torch.tensor([12.0, 8.0])).all(-1, keepdim=True),
        pixel_grid(32, 48, torch.device("cpu")) * 4,
        torch.nan,
    )[None]
    views = replace(standing(), places0=small_places, places1=large_places)

    there = label(views, points((20, 20)), points((5, 5)), near=3, far=5)
    off = label(views, points((24, 20)), points((5, 5)), near=3, far=5)
    back = label(views.swapped(), points((5, 5)), points((20, 20)), near=3, far=5)

    assert len(there.item) == len(back.item) == 1
    assert len(off.item) == 0  # a pixel of the small image is four of the large one


def test_a_pair_without_any_truth_has_no_loss_and_no_gradient():  # CTF-12
    views = replace(standing(), complete=torch.zeros(1, dtype=torch.bool))
    logs = torch.zeros(1, 1, 1, requires_grad=True)
    alone = torch.zeros(1, 1, requires_grad=True)
    labels = label(views, points((5, 5)), points((40, 20)), near=3, far=5)

    loss = surprise(Judged(logs, alone, alone), labels)
    loss.backward()

    assert loss == 0
    assert logs.grad.abs().sum() == 0


def test_an_underflowed_probability_costs_much_but_not_infinitely():  # SNK-03
    logs = torch.full((1, 1, 1), -torch.inf, requires_grad=True)
    alone = torch.zeros(1, 1)
    labels = label(standing(), points((5, 5)), points((5, 5)), near=3, far=5)

    loss = surprise(Judged(logs, alone, alone), labels)
    loss.backward()

    assert loss == 50
    assert logs.grad.isfinite().all()


def test_the_loss_is_the_mean_surprise_of_partners_and_of_the_lonely():
    image0, image1 = points((5, 5), (40, 20)), points((5, 5))
    matches = torch.tensor([[[0.5], [0.1]]]).log()
    judged = Judged(matches, torch.tensor([[0.3, 0.25]]).log(), torch.tensor([[0.4]]).log())

    loss = surprise(judged, label(standing(), image0, image1, near=3, far=5))

    assert loss == pytest.approx(-np.log(0.5) - np.log(0.25) / 2)


@pytest.mark.parametrize("name", ["superglue-xfeat", "loftr-light"])
def test_one_step_from_any_pair_is_finite(name, photographs):  # TRN-02, CTF-12
    model = small(name)
    samples, random = with_seed(Samples(photographs, model.settings), 0)
    black = torch.zeros(2, 1, 64, 96)
    views = samples.draw(random)

    for pair in (views, views.shown(black, black), views.unrelated(), views.of(slice(0, 1))):
        model.objective.zero_grad()
        loss = model.objective(pair)
        loss.backward()
        assert loss.isfinite()
        assert all(
            value.grad.isfinite().all()
            for value in model.objective.parameters()
            if value.grad is not None
        )


@pytest.mark.parametrize("name", ["superglue-xfeat", "loftr-light"])
def test_padding_does_not_change_the_loss(name, photographs):  # CTF-11
    model = small(name)
    samples, random = with_seed(Samples(photographs, model.settings), 3)
    views = samples.draw(random).of(slice(0, 1))
    image0, image1 = (
        model.objective.trainable.tokens(image) for image in (views.image0, views.image1)
    )

    alone = surprise(
        model.objective.trainable.judge(image0, image1), label(views, image0, image1, 3, 5)
    )
    padded0, padded1 = padded(image0), padded(image1)
    together = surprise(
        model.objective.trainable.judge(padded0, padded1), label(views, padded0, padded1, 3, 5)
    )

    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-4)


def padded(image: PointSet) -> PointSet:
    """Add seven points that do not exist."""
    real = torch.ones_like(image.scores, dtype=torch.bool) if image.mask is None else image.mask
    more = torch.nn.functional.pad
    return PointSet(
        more(image.points, (0, 0, 0, 7), value=9.0),
        more(image.scores, (0, 7)),
        more(image.descriptors, (0, 0, 0, 7), value=3.0),
        image.sizes,
        more(real, (0, 7)),
    )


def test_keypoints_are_those_of_the_front_end(photographs):
    model = small("superglue-xfeat")
    image = homographies.draw(photographs, 1, (96, 128), torch.Generator().manual_seed(0))[0].image0
    front_end = features.build("xfeat", max_keypoints=40, min_contrast=0, subpixel=False)

    found = front_end.detect([image[0, 0].numpy()])[0]
    mine = tokens.keypoints(model.objective.trainable.front_end, image, 40)

    assert len(found.points) == 40
    assert {tuple(point) for point in found.points} == {tuple(p) for p in mine.points[0].tolist()}
    order = np.lexsort(found.points.T)
    mine_order = np.lexsort(mine.points[0].numpy().T)
    np.testing.assert_allclose(
        mine.descriptors[0].detach().numpy()[mine_order], found.descriptors[order], atol=1e-4
    )


def test_cells_are_those_of_the_network(photographs):
    model = small("loftr-light")
    image = homographies.draw(photographs, 1, (70, 90), torch.Generator().manual_seed(0))[0].image0
    network = model.objective.trainable.network

    maps = network.describe(image)
    mine = tokens.cells(network.backbone, image, 12)

    inside = (maps.points < torch.tensor([90, 70])).all(-1)  # the map is padded to 72 x 96
    best = (maps.priority * inside).flatten().topk(12).indices
    assert {tuple(p) for p in maps.points.flatten(0, 1)[best].round().tolist()} == {
        tuple(p) for p in mine.points[0].tolist()
    }


def test_the_rate_rises_then_falls():
    shares = [schedule(share, 0.1) for share in (0, 0.05, 0.1, 0.55, 1)]

    assert shares == pytest.approx([0.01, 0.5, 1, 0.505, 0.01])


def run(photographs, folder, model: models.Model, **changes) -> Run:
    chosen = replace(model.settings, **changes)
    model.objective.settings = model.objective.trainable.settings = chosen
    nothing = Figures(0, 0, 0, 0, 0)
    return Run(model.objective, Samples(photographs, chosen), folder, lambda _: nothing)


def test_a_killed_run_ends_like_one_that_was_not(photographs, tmp_path, monkeypatch):
    whole = small("loftr-light")
    run(photographs, tmp_path / "whole", whole).go()
    killed = small("loftr-light")
    draw, drawn = Samples.draw, []

    def draw_twice(self, random):
        drawn.append(1)
        if len(drawn) == 3:
            raise KeyboardInterrupt
        return draw(self, random)

    monkeypatch.setattr(Samples, "draw", draw_twice)
    with pytest.raises(KeyboardInterrupt):
        run(photographs, tmp_path / "killed", killed).go()
    monkeypatch.setattr(Samples, "draw", draw)
    again = small("loftr-light")
    progress = run(photographs, tmp_path / "killed", again).go()

    assert progress.step == 4
    for name, value in whole.state().items():
        assert torch.equal(value, again.state()[name]), name
    start = small("loftr-light").state()
    assert any(not torch.equal(value, start[name]) for name, value in whole.state().items())


def test_a_run_with_other_settings_does_not_go_on(photographs, tmp_path):
    run(photographs, tmp_path, small("loftr-light"), steps=1).go()

    with pytest.raises(ValueError, match="belongs to a run with other settings"):
        run(photographs, tmp_path, small("loftr-light"), rate=1e-5).go()


def test_training_on_a_few_pairs_learns_them(photographs, tmp_path):
    model = small("loftr-light", steps=12, rate=1e-3)
    easy = replace(
        model.settings,
        mix=Mix(scenes=0, unrelated=0),
        homographies=homographies.Config(turn_degrees=5, any_turn=0),
        light=light.Config(strength=0),
    )
    samples, random = with_seed(Samples(photographs, easy), 5)
    batch = samples.draw(random)
    model.objective.settings = model.objective.trainable.settings = easy
    before = validation.measure(model.objective, [batch], 8.0, 0.1)

    class Same(Samples):
        def draw(self, random):
            return batch

    nothing = Figures(0, 0, 0, 0, 0)
    training = Run(model.objective, Same(photographs, easy), tmp_path, lambda _: nothing)
    training.go()
    after = validation.measure(model.objective, [batch], 8.0, 0.1)

    assert after.loss < 0.7 * before.loss
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 12


@pytest.mark.parametrize(
    ("name", "method"), [("superglue-xfeat", "superglue"), ("loftr-light", "loftr")]
)
def test_a_written_model_is_what_the_method_loads(name, method, tmp_path):
    model = small(name)
    with torch.no_grad():
        next(iter(model.objective.trainable.network.context.log_assignment[-1].parameters())).add_(
            1
        )

    models.write(model, tmp_path, {"steps": 0})
    loaded = methods.build(method, weights=tmp_path)

    assert not loaded.untrained
    for mine, theirs in zip(
        model.objective.trainable.network.context.parameters(),
        loaded.network.context.parameters(),
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    assert models.load(tmp_path).settings == model.settings


def test_settings_survive_the_recipe():
    chosen = replace(SMALL, mix=Mix(scenes=0.1), light=light.Config(jpeg=0.9))

    assert settings.from_table(settings.to_table(chosen)) == chosen


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minutes": 0}, "minutes must be positive, not 0"),
        ({"near": 5, "far": 3}, r"far \(3\) must be at least near \(5\)"),
        ({"precision": "int8"}, "no precision 'int8'; there are float32, bfloat16"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Settings(**changes)


def test_a_misspelt_setting_is_named():
    with pytest.raises(TypeError, match="learning_rate"):
        settings.from_table({"learning_rate": 1.0})


def test_shares_of_pairs_above_one_are_refused():
    with pytest.raises(ValueError, match="shares of pairs must be at least 0 and 1 together"):
        Mix(scenes=0.7, real=0.4)


def test_real_pairs_that_are_not_there_are_missed(photographs):
    with pytest.raises(ValueError, match="20% of the pairs shall be real, and no collection"):
        Samples(photographs, replace(SMALL, mix=Mix(real=0.2)))


def test_a_model_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(FileNotFoundError, match="no model 'superglu'; there are .*superglue-xfeat"):
        models.load("superglu")


def test_other_front_ends_are_not_trained():
    with pytest.raises(ValueError, match="only xfeat's keypoints are trained on"):
        models.load("superglue-aliked")


def test_a_recipe_without_a_method_is_refused(tmp_path):
    (tmp_path / "recipe.toml").write_text("threshold = 0.1\n")

    with pytest.raises(ValueError, match="method must be one of superglue, loftr"):
        models.load(tmp_path)


def test_figures_count_what_is_right():
    matches = torch.tensor([[[0.9, 0.01, 0.01], [0.01, 0.6, 0.01], [0.01, 0.01, 0.05]]]).log()
    image0 = points((5, 5), (20, 10), (40, 20))
    image1 = points((5, 6), (30, 10), (40, 20))  # right, 10 pixels off, right but unsure

    class Fixed(torch.nn.Module):
        def look(self, views):
            return (
                Judged(matches, torch.zeros(1, 3), torch.zeros(1, 3)),
                label(standing(), image0, image1, 3, 5),
                (image0, image1),
            )

    figures = validation.measure(Fixed(), [standing()], reach=3.0, threshold=0.2)

    assert figures.recall == pytest.approx(2 / 3)
    assert figures.precision == pytest.approx(1 / 2)
    assert figures.recall_sure == pytest.approx(1 / 3)
    assert figures.pairs == 1


def test_an_objective_counts_the_images_of_a_batch_alike(photographs):
    model = small("superglue-xfeat")
    samples, random = with_seed(Samples(photographs, model.settings), 0)
    views = samples.draw(random)

    objective = model.objective.eval()
    forward, backward = objective(views), objective(views.swapped())

    assert isinstance(objective, Objective)
    torch.testing.assert_close(forward, backward, rtol=1e-3, atol=1e-3)


def test_commands_draw_samples_and_train_a_model_that_matches(tmp_path, capsys):
    photos = tmp_path / "photos"
    photos.mkdir()
    for path in sorted((assets.folder("data") / "photos").glob("*.jpg"))[:3]:
        (photos / path.name).write_bytes(path.read_bytes())
    recipe = tomllib.loads((assets.folder("models") / "loftr-light" / "recipe.toml").read_text())
    recipe["training"] = {"steps": 1, "sizes": [[64, 96]], "batch": 2}
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "recipe.toml").write_text(models.to_toml(recipe))
    arguments = [str(tmp_path / "tiny"), "--photos", str(photos)]

    drawn = command(["samples", *arguments, "--out", str(tmp_path / "sheet.png")])
    trained = command(
        ["train", *arguments, "--out", str(tmp_path / "out"), "--validation-pairs", "2", "--again"]
    )

    assert drawn == trained == 0
    assert "synthetic: loss" in capsys.readouterr().out
    assert (tmp_path / "sheet.png").stat().st_size > 10_000
    assert not methods.build("loftr", weights=tmp_path / "out").untrained


def test_too_few_photographs_are_an_error_with_their_number(tmp_path, capsys):
    arguments = ["train", "loftr-light", "--photos", str(tmp_path), "--out", str(tmp_path / "out")]

    assert command(arguments) == 1
    assert "has 0 photographs named '*'; 2 are the least" in " ".join(
        capsys.readouterr().err.split()
    )
