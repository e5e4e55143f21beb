"""Network, layer and decoder together: every tour keeps its rules, and what is reported is true of the tours."""

from __future__ import annotations

import copy
from itertools import permutations

import numpy as np
import pytest
import torch

from linsat_studies.tsp.config import NetworkConfig
from linsat_studies.tsp.data import Instances, random_instances
from linsat_studies.tsp.evaluate import Clock, Settings, evaluate_network, soft_matrices, symmetric_views
from linsat_studies.tsp.model import TourNet
from linsat_studies.tsp.optimum import known_optima, optima
from linsat_studies.tsp.tours import broken, lengths


@pytest.fixture(scope="module")
def network() -> TourNet:
    torch.manual_seed(0)
    return TourNet(NetworkConfig(cities=7, width=16, layers=2, heads=2, hidden=16)).eval()


def mixed_instances(task: str, count: int = 40) -> Instances:
    """Start, end and priority differ from instance to instance."""
    rng = np.random.default_rng(1)
    marks = np.array([rng.permutation(7)[:3] for _ in range(count)])
    coords = rng.uniform(size=(count, 7, 2))
    if task == "se":
        return Instances(coords, marks[:, 0], marks[:, 1])
    return Instances(coords, marks[:, 0], marks[:, 1], marks[:, 2], 2)


def brute_force(instances: Instances) -> np.ndarray:
    """Shortest lengths by trying every order."""
    best = []
    for i in range(len(instances)):
        places = instances.coords[i]
        start, end = instances.start[i], instances.end[i]
        inner = [city for city in range(7) if city not in (start, end)]
        found = np.inf
        for middle in permutations(inner):
            tour = [start, *middle, end]
            if instances.priority is None or tour.index(instances.priority[i]) <= instances.within:
                found = min(found, np.linalg.norm(np.diff(places[tour], axis=0), axis=1).sum())
        best.append(found)
    return np.array(best)


@pytest.mark.parametrize("task", ["se", "pri"])
@pytest.mark.parametrize("decoder", ["beam", "search"])
def test_tours_keep_the_rules_and_the_summary_is_true(network, task, decoder, tmp_path):
    instances = mixed_instances(task)
    result = evaluate_network(network, instances, Settings(decoder, width=4, threads=1))
    assert not broken(instances, result.tours).any()
    exact = brute_force(instances)
    summary = result.summary(optima(instances, folder=tmp_path))
    own = lengths(instances.coords, result.tours)
    assert summary["mean_length"] == pytest.approx(own.mean())
    assert summary["mean_optimum"] == pytest.approx(exact.mean())
    assert summary["gap_percent"] == pytest.approx(100 * (own.mean() / exact.mean() - 1))
    assert summary["optimal_share"] == pytest.approx((own < exact + 1e-9).mean())
    assert summary["feasible_share"] == 1.0
    parts = {name: summary["seconds"][name] for name in ("network", "layer", "search")}
    assert min(parts.values()) > 0
    assert sum(parts.values()) == pytest.approx(summary["seconds"]["total"])


def test_a_beam_that_keeps_everything_finds_the_optimum(network):
    instances = mixed_instances("pri")
    result = evaluate_network(network, instances, Settings("beam", width=2048, threads=1))
    np.testing.assert_allclose(result.lengths, brute_force(instances))


def test_a_descent_never_lengthens_and_more_views_find_other_tours(network):
    instances = mixed_instances("se")
    beam, search, views = (
        evaluate_network(network, instances, settings).lengths
        for settings in (
            Settings("beam", width=2, threads=1),
            Settings("search", width=2, threads=1),
            Settings("beam", width=16, views=8, threads=1),
        )
    )
    assert (search <= beam + 1e-12).all()
    assert views.mean() < beam.mean()


def test_rounding_reports_its_share_and_writes_feasible_tours_only(network, tmp_path):
    instances = mixed_instances("pri", 200)
    decided = copy.deepcopy(network)
    with torch.no_grad():
        decided.heads[-1][-1].weight.mul_(100)  # far apart, as a trained network's scores are
    result = evaluate_network(decided, instances, Settings("round", tau=0.02, threads=1))
    summary = result.summary()
    assert 0 < summary["feasible_share"] < 1
    assert (result.tours[~result.feasible] == -1).all()
    result.write_tours(tmp_path / "deep" / "tours.npz")
    with np.load(tmp_path / "deep" / "tours.npz") as file:
        coords, tours, index = file["coords"], file["tours"], file["index"]
    assert len(tours) == len(coords) == round(200 * summary["feasible_share"])
    np.testing.assert_array_equal(coords, instances.coords[index])
    assert not broken(instances[index], tours).any()
    assert summary["mean_length"] == pytest.approx(lengths(coords, tours).mean())
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["tours.npz"]


def test_views_are_the_eight_symmetries_of_the_square():
    coords = torch.rand(3, 7, 2)
    views = symmetric_views(coords, 8)
    assert views.min() >= 0
    assert views.max() <= 1
    torch.testing.assert_close(torch.cdist(views[5], views[5]), torch.cdist(coords, coords), atol=1e-5, rtol=0)
    apart = torch.pdist(views.flatten(1))
    assert (apart > 0.1).all()


def test_chunks_and_threads_do_not_change_the_tours(network, monkeypatch):
    instances = mixed_instances("se")
    whole = evaluate_network(network, instances, Settings("beam", width=8, threads=1))
    monkeypatch.setattr("linsat_studies.tsp.evaluate.CHUNK", 7)
    seen: list[tuple[int, int]] = []
    parts = evaluate_network(
        network, instances, Settings("beam", width=8, threads=2), progress=lambda *at: seen.append(at)
    )
    np.testing.assert_allclose(whole.lengths, parts.lengths)
    assert seen[-1] == (40, 40)


def test_projections_inside_the_network_count_as_time_of_the_layer(network, monkeypatch):
    import time

    import linsat_studies.tsp.model as model

    real = model.project_scores

    def slow(*args: object, **kwargs: object) -> torch.Tensor:
        time.sleep(0.2)
        return real(*args, **kwargs)

    monkeypatch.setattr(model, "project_scores", slow)
    clock = Clock()
    canonical, _ = mixed_instances("se", 2).canonical()
    with clock.watch(network):
        soft_matrices(network, canonical, Settings(), clock)
    assert clock.seconds["layer"] >= 0.2
    assert clock.seconds["network"] < 0.2


@pytest.mark.parametrize(
    ("changes", "names"),
    [({"tau": 0.0}, "tau is 0.0"), ({"views": 9}, "views is 9"), ({"decoder": "round", "views": 2}, "views is 2")],
)
def test_settings_that_cannot_work_are_named(changes, names):
    with pytest.raises(ValueError, match=names):
        Settings(**changes)


def test_optima_are_kept_by_content_and_mended_when_damaged(tmp_path, monkeypatch):
    instances = mixed_instances("pri", 6)
    monkeypatch.setattr("linsat_studies.tsp.optimum.BLOCK", 4)
    assert known_optima(instances, folder=tmp_path) is None
    tours = optima(instances, folder=tmp_path)
    np.testing.assert_allclose(lengths(instances.coords, tours), brute_force(instances))
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr("linsat_studies.tsp.exact.optimal_tours", None)  # from here on reading must do
    np.testing.assert_array_equal(known_optima(instances, folder=tmp_path), tours)
    np.testing.assert_array_equal(optima(instances, folder=tmp_path), tours)
    other = Instances(instances.coords, instances.start, instances.end, instances.priority, 3)
    assert known_optima(other, folder=tmp_path) is None
    monkeypatch.undo()
    monkeypatch.setattr("linsat_studies.tsp.optimum.BLOCK", 4)
    next(tmp_path.iterdir()).write_bytes(b"half a fi")
    np.testing.assert_array_equal(optima(instances, folder=tmp_path), tours)


def test_no_instances_give_no_tours(tmp_path):
    assert optima(random_instances("se", 0, seed=1), folder=tmp_path).shape == (0, 20)
