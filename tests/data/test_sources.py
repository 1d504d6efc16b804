"""The bundled data sets before they are partitioned."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from homophily.data.sources import HEART_FEATURES, HOSPITALS, coefficients, load_source, read_hospital, sources
from homophily.data.types import Samples, Source
from homophily.errors import UserError


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOMOPHILY_MIRROR", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def real(name: str, *files: str) -> Path:
    """The folder with the real files; skips the test if HOMOPHILY_DATA does not contain them."""
    for folder in os.environ.get("HOMOPHILY_DATA", "").split(os.pathsep):
        if folder and all((Path(folder) / name / file).exists() for file in files):
            return Path(folder) / name
    pytest.skip(f"HOMOPHILY_DATA leads to no {name}/{files[0]}: the real {name} was not tested")


# the registry


def test_the_bundled_data_sets_are_listed_with_a_line_each() -> None:
    assert list(sources) == [
        "cifar-10",
        "cifar-100",
        "digits",
        "fashion-mnist",
        "heart-disease",
        "linear",
        "mnist",
        "synthetic",
    ]
    assert all(sources.about(name).endswith((".", "?")) for name in sources)


def test_an_unknown_data_set_is_reported_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown data set 'minst' \(did you mean 'mnist'\?\)"):
        load_source("minst", 0, {})


@pytest.mark.parametrize(
    ("name", "key", "known"),
    [("digits", "noise", "it has no keys"), ("linear", "nois", "its keys are features, noise, samples")],
)
def test_an_unknown_key_is_reported_with_the_known_ones(name: str, key: str, known: str) -> None:
    with pytest.raises(UserError, match=rf"data\.{key}: the data set '{name}' does not have this key; .*{known}"):
        load_source(name, 0, {key: 1})


def test_the_seed_is_not_a_key_of_a_data_set() -> None:
    with pytest.raises(UserError, match=r"data\.seed"):
        load_source("linear", 0, {"seed": 3})


def own_source(seed: int, shade: float = 0.5, **more: float) -> Source:
    """A user's data set."""
    return Source("own", Samples(torch.full((2, 1), shade + seed), torch.zeros(2, dtype=torch.int64)), None, 1)


def test_a_users_function_gets_the_seed_and_its_keys() -> None:
    source = load_source(f"{__name__}:own_source", 7, {"shade": 0.25, "other": 1.0})
    assert source.train.x.tolist() == [[7.25], [7.25]]


def no_source() -> list[int]:
    return []


def test_a_users_function_must_return_a_source() -> None:
    with pytest.raises(UserError, match=r":no_source' must return a Source, not list"):
        load_source(f"{__name__}:no_source", 7, {})


# digits


def test_digits_are_pixels_of_the_bundled_images() -> None:
    source = load_source("digits", 0, {})
    assert source.test is not None
    assert source.train.x.shape == (1200, 1, 8, 8)
    assert source.test.x.shape == (597, 1, 8, 8)
    assert source.train.x.dtype == torch.uint8
    assert source.classes == 10
    assert source.train.y.unique().tolist() == source.test.y.unique().tolist() == list(range(10))


def test_digits_over_255_are_sixteenths() -> None:
    values = load_source("digits", 0, {}).train.x.to(torch.float64) / 255 * 16
    assert (values - values.round()).abs().max() < 0.05
    assert values.round().unique().tolist() == list(range(17))


def test_digits_contain_every_image_once_for_every_seed() -> None:
    from sklearn.datasets import load_digits

    one, other = load_source("digits", 0, {}), load_source("digits", 99, {})
    assert one.test is not None
    assert other.test is not None
    assert torch.equal(one.test.x, other.test.x)
    images = torch.cat([one.train.x, one.test.x]).flatten(1).to(torch.float64)
    bundled = torch.from_numpy(load_digits().data * 255 / 16).round()
    assert sorted(map(tuple, images.tolist())) == sorted(map(tuple, bundled.tolist()))
    assert not torch.equal(images, bundled)  # shuffled: the bundled order goes writer by writer


def test_the_default_shift_of_digits_is_rotation() -> None:
    assert load_source("digits", 0, {}).defaults == {"shift": "rotation", "normalise": "standard"}


# MNIST and Fashion-MNIST


def idx(values: torch.Tensor) -> bytes:
    shape = b"".join(n.to_bytes(4, "big") for n in values.shape)
    return bytes([0, 0, 8, values.dim()]) + shape + bytes(values.flatten().tolist())


def write_idx(folder: Path, images: torch.Tensor, labels: torch.Tensor) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_images_get_a_channel(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.arange(3 * 28 * 28).reshape(3, 28, 28).to(torch.uint8)
    write_idx(tmp_path / name, images, torch.tensor([5, 0, 9]))
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    source = load_source(name, 0, {})
    assert source.test is not None
    assert torch.equal(source.train.x, images[:, None])
    assert source.test.y.tolist() == [5, 0, 9]
    assert source.train.y.dtype == torch.int64
    assert source.classes == 10


def test_files_are_read_again_only_when_they_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    images = torch.zeros(3, 28, 28, dtype=torch.uint8)
    write_idx(tmp_path / "mnist", images, torch.tensor([5, 0, 9]))
    first = load_source("mnist", 0, {})
    assert load_source("mnist", 1, {}).train is first.train
    write_idx(tmp_path / "mnist", images + 1, torch.tensor([5, 0, 8]))
    assert load_source("mnist", 0, {}).train.y.tolist() == [5, 0, 8]
    assert first.train.y.tolist() == [5, 0, 9]


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [([1, 2], r"of shape \[3, 28, 28\] and .*train-labels-idx1-ubyte of shape \[2\]"), ([1, 2, 10], "the label 10")],
)
def test_idx_files_that_do_not_fit_are_named(
    labels: list[int], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "mnist", torch.zeros(3, 28, 28, dtype=torch.uint8), torch.tensor(labels))
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    with pytest.raises(UserError, match=complaint):
        load_source("mnist", 0, {})


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_idx_files(name: str) -> None:
    real(name, "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    source = load_source(name, 0, {})
    assert source.test is not None
    assert source.train.x.shape == (60_000, 1, 28, 28)
    assert source.test.x.shape == (10_000, 1, 28, 28)
    assert source.test.y.bincount(minlength=10).min() > 800


# CIFAR


def write_cifar(path: Path, labels: Sequence[tuple[int, ...]]) -> None:
    """Images whose every pixel is their first label."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(bytes(label) + bytes([label[0]]) * 3072 for label in labels))


def test_cifar_10_is_its_five_batches_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(1, 6):
        write_cifar(tmp_path / "cifar-10" / f"data_batch_{i}.bin", [(i,), (i + 1,)][: 1 + i % 2])
    write_cifar(tmp_path / "cifar-10" / "test_batch.bin", [(9,)])
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    source = load_source("cifar-10", 0, {})
    assert source.test is not None
    assert source.train.y.tolist() == [1, 2, 2, 3, 4, 4, 5, 6]
    assert source.train.x.shape == (8, 3, 32, 32)
    assert source.train.x[:, 0, 0, 0].tolist() == source.train.y.tolist()
    assert source.test.y.tolist() == [9]
    assert (source.classes, source.train.coarse) == (10, None)


def test_cifar_100_is_every_training_file_of_the_first_complete_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(tmp_path / "a" / "cifar-100" / "train.bin", [(1, 1)])  # without test.bin
    folder = tmp_path / "b" / "cifar-100"
    write_cifar(folder / "train_2.bin", [(19, 99)])
    write_cifar(folder / "train_1.bin", [(4, 40), (5, 41)])
    write_cifar(folder / "test.bin", [(0, 7)])
    monkeypatch.setenv("HOMOPHILY_DATA", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    source = load_source("cifar-100", 0, {})
    assert source.train.coarse is not None
    assert source.train.y.tolist() == [40, 41, 99]
    assert source.train.coarse.tolist() == [4, 5, 19]
    assert source.classes == 100


def test_a_damaged_cifar_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path / "cifar-100" / "test.bin", [(0, 7)])
    (tmp_path / "cifar-100" / "train.bin").write_bytes(bytes(3000))
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"cifar-100/train\.bin: truncated"):
        load_source("cifar-100", 0, {})


def test_the_real_cifar_10() -> None:
    real("cifar-10", "data_batch_1.bin", "test_batch.bin")
    source = load_source("cifar-10", 0, {})
    assert source.test is not None
    assert source.train.y.bincount().tolist() == [5000] * 10
    assert source.test.y.bincount().tolist() == [1000] * 10
    assert source.train.x.to(torch.float32).mean((0, 2, 3)).div(255).tolist() == pytest.approx(
        [0.4914, 0.4822, 0.4465], abs=1e-3
    )


def test_the_real_cifar_100() -> None:
    real("cifar-100", "test.bin")
    source = load_source("cifar-100", 0, {})
    assert source.test is not None
    assert source.test.coarse is not None
    assert source.test.y.bincount().tolist() == [100] * 100
    assert source.test.coarse.bincount().tolist() == [500] * 20
    assert len(torch.stack([source.test.coarse, source.test.y], 1).unique(dim=0)) == 100  # a class, one superclass


# linear


def test_linear_targets_are_products_and_noise() -> None:
    source = load_source("linear", 3, {"samples": 6000})
    assert source.test is not None
    assert (source.train.x.shape, source.test.x.shape) == ((6000, 10), (1000, 10))
    assert (source.train.y.shape, source.train.y.dtype, source.classes) == ((6000, 1), torch.float32, None)
    theta = coefficients(3, 0, 10)
    for samples in (source.train, source.test):
        noise = samples.y[:, 0].double() - samples.x.double() @ theta
        assert abs(float(noise.mean())) < 0.3
        assert float(noise.std()) == pytest.approx(3.0, rel=0.06)
        for kind in (noise, noise.abs()):  # independent of the features
            assert torch.corrcoef(torch.cat([kind[None], samples.x.double().T]))[0, 1:].abs().max() < 0.12


def test_linear_features_are_uniform_and_independent() -> None:
    x = load_source("linear", 3, {"samples": 6000}).train.x
    assert x.abs().max() <= 10
    assert torch.allclose(x.quantile(torch.tensor([0.25, 0.5, 0.75]), dim=0).T, torch.tensor([-5.0, 0, 5]), atol=0.6)
    off_diagonal = torch.corrcoef(x.T) - torch.eye(10)
    assert off_diagonal.abs().max() < 0.06


def test_linear_training_and_test_samples_are_drawn_independently() -> None:
    source = load_source("linear", 3, {"samples": 60})
    assert source.test is not None
    assert not set(source.train.x.flatten().tolist()) & set(source.test.x.flatten().tolist())


def test_linear_without_noise_is_exact() -> None:
    source = load_source("linear", 1, {"samples": 60, "noise": 0, "features": 2})
    assert torch.allclose(source.train.y[:, 0].double(), source.train.x.double() @ coefficients(1, 0, 2), atol=1e-4)


def test_linear_depends_on_the_seed_alone() -> None:
    keys = {"samples": 60}
    one, again, other = (load_source("linear", seed, keys).train for seed in (1, 1, 2))
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.y, again.y)
    assert not torch.equal(one.x, other.x)
    more = load_source("linear", 1, {"samples": 120}).train
    assert torch.equal(more.x[:60], one.x)


def test_concepts_have_different_coefficients() -> None:
    drawn = torch.stack([coefficients(seed, concept, 10) for seed in range(50) for concept in range(3)])
    assert drawn.dtype == torch.float64
    assert len(drawn.unique()) == drawn.numel()
    assert -5.0 <= drawn.min() < -4.9
    assert 4.9 < drawn.max() < 5.0
    assert torch.equal(coefficients(4, 2, 3), coefficients(4, 2, 10)[:3])


@pytest.mark.parametrize(("key", "value"), [
    ("features", 0), ("samples", 5), ("noise", -1.0), ("features", "ten"), ("noise", math.inf), ("samples", 10**14),
])  # fmt: skip
def test_linear_refuses_invalid_settings(key: str, value: object) -> None:
    message = rf"data\.{key} must be a (whole )?number of at least \d and at most .*, not {value!r}"
    with pytest.raises(UserError, match=message):
        load_source("linear", 0, {key: value})


def test_the_default_shift_of_linear_is_concept() -> None:
    assert load_source("linear", 0, {"samples": 6}).defaults == {"shift": "concept", "normalise": "unit"}


# heart disease

PATIENT = "63,1,1,145,233,1,2,150,0,2.3,3,0,6,{num}"


def write_hospitals(folder: Path, *rows: str) -> None:
    (folder / "heart-disease").mkdir()
    for file in HOSPITALS.values():
        (folder / "heart-disease" / file).write_text("\n".join(rows) + "\n")


def test_a_patient_has_the_disease_if_the_diagnosis_is_above_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hospitals(tmp_path, *(PATIENT.format(num=num) for num in (0, 1, 4)))
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    source = load_source("heart-disease", 0, {})
    assert source.train.y.tolist() == [0, 1, 1] * 4
    assert source.train.owner is not None
    assert source.train.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert source.owners == ("Cleveland", "Hungary", "Switzerland", "Long Beach")
    assert (source.classes, source.test) == (2, None)
    assert source.train.x[0, 0].item() == pytest.approx((63 - HEART_FEATURES["age"][0]) / HEART_FEATURES["age"][1])


def test_question_marks_and_impossible_zeros_are_missing(tmp_path: Path) -> None:
    path = tmp_path / "hospital.data"
    path.write_text("63,0,1,0,0,0,0,150,0,0,?,0,6,0\n")
    x, _ = read_hospital(path)
    missing = [name for name, value in zip(HEART_FEATURES, x[0].tolist(), strict=True) if value != value]
    assert missing == ["trestbps", "chol", "slope"]
    assert x[0, 1] == 0  # zeros in other columns are values


def test_a_missing_diagnosis_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "hospital.data"
    path.write_text(PATIENT.format(num="?"))
    with pytest.raises(UserError, match=r"hospital\.data: a diagnosis"):
        read_hospital(path)


def test_the_real_hospitals() -> None:
    real("heart-disease", *HOSPITALS.values())
    train = load_source("heart-disease", 0, {}).train
    assert train.owner is not None
    assert (train.x.shape, train.x.dtype) == ((920, 13), torch.float32)
    assert train.owner.bincount().tolist() == [303, 294, 123, 200]
    assert train.y.sum() == 509
    assert train.x[train.owner == 2, list(HEART_FEATURES).index("chol")].isnan().all()  # not measured in Switzerland


def test_the_table_of_means_and_deviations_is_that_of_the_real_files() -> None:
    folder = real("heart-disease", *HOSPITALS.values())
    x = torch.cat([read_hospital(folder / file)[0] for file in HOSPITALS.values()])
    for column, (name, (mean, deviation)) in zip(x.T, HEART_FEATURES.items(), strict=True):
        observed = column[~column.isnan()]
        assert mean == pytest.approx(observed.mean().item(), abs=1e-6), name
        assert deviation == pytest.approx(observed.std(correction=0).item(), abs=1e-6), name


def test_the_default_shift_of_heart_disease_is_natural(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hospitals(tmp_path, PATIENT.format(num=0))
    monkeypatch.setenv("HOMOPHILY_DATA", str(tmp_path))
    assert load_source("heart-disease", 0, {}).defaults == {
        "shift": "natural",
        "normalise": "unit",
        "peers": 29,
        "train": 20,
        "test": 10,
    }
