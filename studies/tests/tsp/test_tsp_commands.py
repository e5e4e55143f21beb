"""The command line, run as a person runs it: results in files, errors in one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("typer")
from typer.testing import CliRunner

from linsat_studies.checkpoints import write_checkpoint
from linsat_studies.tsp.commands import app
from linsat_studies.tsp.config import NetworkConfig
from linsat_studies.tsp.data import random_instances
from linsat_studies.tsp.model import TourNet
from linsat_studies.tsp.tours import broken, lengths

runner = CliRunner()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def checkpoint(tmp_path) -> str:
    sizes = {"cities": 20, "width": 16, "layers": 1, "heads": 2, "hidden": 16}
    torch.manual_seed(0)
    state = TourNet(NetworkConfig(**sizes)).state_dict()
    write_checkpoint(tmp_path / "small.pt", {"config": {"network": sizes, "tasks": ["se", "pri"]}, "weights": state})
    return str(tmp_path / "small.pt")


def run(*words: object) -> tuple[int, str]:
    result = runner.invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def write_cities(path: Path, count: int) -> np.ndarray:
    places = np.random.default_rng(count).uniform(0, 100, size=(count, 2)).round(2)
    path.write_text("name,x,y\n" + "".join(f"c{i},{x},{y}\n" for i, (x, y) in enumerate(places)))
    return places


@pytest.mark.parametrize("task", ["se", "pri"])
def test_evaluate_writes_what_it_prints(task, checkpoint, tmp_path):
    code, text = run(
        *("evaluate", "--task", task, "--decoder", "search", "--count", 3, "--seed", 4, "--width", 4, "--threads", 1),
        *("--checkpoint", checkpoint, "--tours", tmp_path / "tours.npz", "--json", tmp_path / "result.json", "--exact"),
    )
    assert code == 0, text
    summary = json.loads((tmp_path / "result.json").read_text())
    with np.load(tmp_path / "tours.npz") as file:
        coords, tours = file["coords"], file["tours"]
    instances = random_instances(task, 3, seed=4)
    np.testing.assert_array_equal(coords, instances.coords)
    assert not broken(instances, tours).any()
    assert summary["mean_length"] == pytest.approx(lengths(coords, tours).mean())
    assert summary["gap_percent"] >= -1e-9
    assert summary["seconds"].keys() == {"network", "layer", "search", "total"}
    assert f"{summary['mean_length']:.5g}" in text


def test_the_test_set_is_the_default(checkpoint, tmp_path):
    np.random.seed(1234)
    expected = np.random.uniform(size=(10_000, 20, 2))[:3]
    words = ("--count", 3, "--width", 2, "--threads", 1, "--checkpoint", checkpoint, "--tours", tmp_path / "t.npz")
    assert run("evaluate", "--task", "se", *words)[0] == 0
    with np.load(tmp_path / "t.npz") as file:
        np.testing.assert_array_equal(file["coords"], expected)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--task", "se", "--seed", 1234), "seed is 1234"),
        (("--task", "se", "--count", 10_001), "count is 10001"),
        (("--task", "se", "--tau", -1), "tau is -1.0"),
        (("--task", "se", "--checkpoint", "nowhere.pt"), "nowhere.pt is not a file"),
        (("--task", "se", "--decoder", "round", "--views", 2), "views is 2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, named):
    code, text = run("evaluate", *words)
    assert code == 2
    assert named in text
    assert text.startswith("error: ")
    assert text.count("\n") == 1


def test_an_unknown_task_is_refused():
    assert run("evaluate", "--task", "both")[0] == 2


def test_an_interrupt_writes_nothing(checkpoint, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("linsat_studies.tsp.evaluate.evaluate_network", interrupted)
    code, text = run(
        "evaluate", "--task", "se", "--checkpoint", checkpoint, "--json", tmp_path / "r.json", "--count", 2
    )
    assert code == 130
    assert "interrupted" in text
    assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize("extra", [(), ("--priority", "c3", "--within", 2)])
def test_solve_prints_a_tour_of_the_stated_length_and_draws_it(tmp_path, extra):
    places = write_cities(tmp_path / "cities.csv", 9)
    picture = tmp_path / "pictures" / "tour.png"
    code, text = run("solve", tmp_path / "cities.csv", "--start", "c0", "--end", "8", *extra, "--out", picture)
    assert code == 0, text
    tour = [int(name[1:]) for name in text.splitlines()[0].split(" -> ")]
    assert sorted(tour) == list(range(9))
    assert (tour[0], tour[-1]) == (0, 8)
    assert not extra or tour.index(3) <= 2
    length = np.linalg.norm(np.diff(places[tour], axis=0), axis=1).sum()
    assert f"length {length:.6g}," in text
    assert "exact" in text
    assert "20 cities, these are 9" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_solve_turns_to_local_search_for_many_cities(tmp_path):
    write_cities(tmp_path / "cities.csv", 26)
    code, text = run("solve", tmp_path / "cities.csv", "--start", "c0", "--end", "c1")
    assert code == 0, text
    assert "local search from" in text
    assert "these are 26" in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--start", "c0", "--end", "c0"), "end and start"),
        (("--start", "c0", "--end", "home"), "end: no city is called 'home'"),
        (("--start", "c0", "--end", "c1", "--within", 3), "--priority"),
        (("--start", "c0", "--end", "c1", "--priority", "c2", "--within", 8), "within is 8"),
        (("--start", "c0", "--end", "c1", "--method", "network"), "--method auto"),
        (("--start", "c0", "--end", "c1", "--out", "tour.gif"), "tour.gif"),
    ],
)
def test_solve_names_what_is_wrong(tmp_path, words, named):
    write_cities(tmp_path / "cities.csv", 9)
    code, text = run("solve", tmp_path / "cities.csv", *words)
    assert code == 2
    assert text.startswith("error: ")
    assert named in text


def test_solve_names_a_missing_file(tmp_path):
    code, text = run("solve", tmp_path / "none.csv", "--start", "a", "--end", "b")
    assert code == 2
    assert "none.csv" in text


def test_solve_names_a_file_that_is_no_text(tmp_path):
    (tmp_path / "cities.csv").write_bytes(bytes(range(256)))
    code, text = run("solve", tmp_path / "cities.csv", "--start", "a", "--end", "b")
    assert code == 2
    assert "is not a text file" in text


def test_a_folder_in_place_of_a_file_is_told_before_the_work(tmp_path):
    code, text = run("evaluate", "--task", "se", "--json", tmp_path)
    assert code == 2
    assert "is a folder" in text


def test_baselines_print_a_table():
    code, text = run("baselines", "--task", "pri", "--count", 4, "--seed", 2, "--no-exact", "--threads", 1)
    assert code == 0, text
    assert "farthest insertion" in text
    assert "20 random starts" in text


@pytest.mark.parametrize("model", ["attention", "linsat"])
def test_train_makes_a_checkpoint_and_continues(tmp_path, model, monkeypatch):
    import dataclasses

    import linsat_studies.tsp.attention as attention
    import linsat_studies.tsp.config as config

    small = attention.AttentionConfig(width=16, layers=1, heads=2, hidden=16)
    run_small = dataclasses.replace(attention.AttentionRun(), network=small, batch=4, samples=2, validation=2)
    monkeypatch.setattr(attention, "AttentionRun", lambda: run_small)
    sizes = config.NetworkConfig(width=16, layers=1, heads=2, hidden=16)
    tours = dataclasses.replace(config.TourConfig(), network=sizes, batch=4, validation=2, beam=4)
    monkeypatch.setattr(config, "TourConfig", lambda: tours)
    words = ("train", "--model", model, "--folder", tmp_path / "run", "--threads", 1)
    code, text = run(*words, "--steps", 2)
    assert code == 0, text
    assert run(*words, "--steps", 3)[0] == 0
    lines = (tmp_path / "run" / "curve.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]


def test_the_attention_model_refuses_a_single_task(tmp_path):
    code, text = run("train", "--model", "attention", "--task", "se", "--folder", tmp_path)
    assert code == 2
    assert "both tasks" in text
