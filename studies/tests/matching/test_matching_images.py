"""The command line on data with images: prepare, train, evaluate, show and report on a small folder of one's own."""

import io
import json

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("matplotlib")
pytest.importorskip("efficientnet_lite_pytorch")
pytest.importorskip("PIL")
from PIL import Image
from typer.testing import CliRunner

from linsat_studies.matching import commands
from linsat_studies.matching.data import load_collection, write_collection
from linsat_studies.matching.data import test_pairs as fixed_test_pairs
from linsat_studies.matching.features import load_features
from linsat_studies.matching.measurements import Study, find_runs

runner = CliRunner()
BOX = [0, 0, 50, 50]
SMALL = {"width": 8, "channels": 4, "kernel": 3, "layers": 1, "rounds": 1}
NAMES = ("eye", "ear", "nose", "tail", "paw")


def run(*words):
    result = runner.invoke(commands.app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two classes of 20 training and 4 test objects, four or five keypoints each, noise as images."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    rows, crops = [], []
    for cls in ("cat", "dog"):
        for number in range(24):
            shown = [name for name in NAMES if name != NAMES[number % 7 % 5] or number % 2]
            points = [[name, *random.uniform(5, 45, 2).round(2).tolist()] for name in shown]
            thing = f"{cls}{number:02d}"
            split = "train" if number < 20 else "test"
            rows.append({"id": thing, "split": split, "cls": cls, "image": thing, "bbox": BOX, "kpts": points})
            buffer = io.BytesIO()
            noise = random.integers(0, 255, (8, 8, 3), np.uint8)
            Image.fromarray(noise).resize((256, 256)).save(buffer, "webp")
            crops.append((thing, buffer.getvalue()))
    write_collection(folder, rows, crops)
    return folder


@pytest.fixture(scope="module")
def study(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    code, text = run("prepare", "--data", data, "--out", folder)
    assert code == 0, text
    assert "features of 48 objects" in text
    settings = {"network": SMALL, "batch": 4, "validated": 2}
    (folder / "small.json").write_text(json.dumps(settings))
    words = ("--network", "ngm", "--technique", "layer", "--steps", 2, "--config", folder / "small.json")
    code, text = run("train", *words, "--seeds", 1, "--data", data, "--out", folder)
    assert code == 0, text
    return folder


def test_evaluate_is_on_the_test_split_alone(data, study, tmp_path):
    code, text = run("evaluate", "--data", data, "--out", study, "--json", tmp_path / "t.json")
    assert code == 0, text
    content = json.loads((tmp_path / "t.json").read_text())
    assert content["scope"]["pairs"] == 2 * 6  # all pairs of 4 test objects a class
    assert content["scope"]["features"] == "efficientnet-lite0"
    assert set(content["table"]["NGMv2, layer"]["by_class"]) == {"cat", "dog"}
    assert content["table"]["NGMv2, layer"]["violation"] < 1e-6


def test_show_draws_over_the_images(data, study, tmp_path):
    path = tmp_path / "pair.png"
    code, text = run("show", "cat20", "cat22", "--data", data, "--out", study, "--picture", path)
    assert code == 0, text
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    spread = pixels[80:-120].max(-1) - pixels[80:-120].min(-1)
    assert (spread > 20).mean() > 0.5  # colours, not points on white
    code, text = run("show", "cat20", "dog20", "--data", data, "--out", study, "--picture", path)
    assert code == 2
    assert "one class" in text


def test_report_states_the_backbone_s_share_and_the_baselines(data, study):
    code, text = run("report", "--data", data, "--out", study)
    assert code == 0, text
    page = (study / "index.html").read_text()
    for phrase in ("with the backbone", "features alone", "position alone", "efficientnet-lite0", "Pascal VOC"):
        assert phrase in page
    found = json.loads((study / "results" / "times.json").read_text())
    assert found["backbone"] > 0
    assert set(found["batch"]) == set(found["alone"]) == {"network", "layer", "decoder"}


def test_a_result_says_what_it_was_measured_on(data, study):
    collection, features = load_collection(data), load_features(study / "features")
    one = Study(study, fixed_test_pairs(collection, per_class=2), features, "test")
    two = Study(study, fixed_test_pairs(collection, per_class=2, seed=5), features, "test")
    assert one.scope["pairs"] == two.scope["pairs"] == 4
    assert one.scope != two.scope
    run = find_runs(study)[0]
    first = one.row(run, "NGMv2, layer")
    assert first["scope"]["step"] == 2
    assert one.row(run, "NGMv2, layer") == first


def test_features_are_asked_for(data, tmp_path):
    code, text = run("evaluate", "--data", data, "--out", tmp_path)
    assert code == 2
    assert "linsat-studies matching prepare" in text
    assert len(text.strip().splitlines()) == 1
