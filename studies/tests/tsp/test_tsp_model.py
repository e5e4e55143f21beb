"""The network: shapes, symmetries it must have, gradients, soft tours that satisfy the rows, files."""

import itertools
import json

import numpy as np
import pytest
import torch

from linsat_studies.checkpoints import CheckpointError, export, load_weights, write_checkpoint
from linsat_studies.settings import ConfigError, Plan, from_json, to_json
from linsat_studies.tsp.config import NetworkConfig, TourConfig, read_config
from linsat_studies.tsp.constraints import project_scores, rows
from linsat_studies.tsp.data import InstanceError, random_instances
from linsat_studies.tsp.decode import beam_search, rounded_tours
from linsat_studies.tsp.learner import cross_entropy, expected_length
from linsat_studies.tsp.local_search import random_restarts
from linsat_studies.tsp.model import TourNet, city_features, distances, soft_tours
from linsat_studies.tsp.shipped import SHIPPED, load_network
from linsat_studies.tsp.tours import lengths

SMALL = NetworkConfig(cities=7, width=16, layers=2, heads=2, hidden=16)


def cities(count, n=7, seed=0):
    return torch.rand(count, n, 2, generator=torch.Generator().manual_seed(seed))


def small_net(**changes):
    torch.manual_seed(0)
    return TourNet(NetworkConfig(**{**SMALL.__dict__, **changes}))


@pytest.mark.parametrize("task", ["se", "pri"])
@pytest.mark.parametrize("tau", [0.1, 0.005])
def test_soft_tours_satisfy_the_rows_of_the_task(task, tau):
    X = soft_tours(small_net(), cities(5), task, tau).double()
    torch.testing.assert_close(X.sum(1), torch.ones(5, 7).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(X.sum(2), torch.ones(5, 7).double(), atol=1e-5, rtol=0)
    assert torch.equal(X[:, 0, 0], torch.ones(5).double())
    assert torch.equal(X[:, 6, 6], torch.ones(5).double())
    if task == "pri":
        assert X[:, 1, 6:].abs().max() <= 1e-6


def test_priority_may_be_later_than_in_training():
    # n = 7 with within = 2: city 1 at position 1 or 2 only.
    X = soft_tours(small_net(), cities(4), "pri", 0.1, within=2)
    torch.testing.assert_close(X[:, 1, 1:3].sum(1), torch.ones(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize("refine", [True, False])
def test_relabelling_the_other_cities_relabels_the_scores(refine):
    # No positional encoding: cities without a mark have no order. Cities 2..5 carry none in TSP-PRI.
    net, coords = small_net(refine=refine), cities(3)
    order = torch.tensor([0, 1, 4, 2, 5, 3, 6])
    with torch.no_grad():
        torch.testing.assert_close(net(coords[:, order], "pri"), net(coords, "pri")[:, order], atol=1e-5, rtol=1e-4)


def test_an_instance_does_not_depend_on_its_batch():
    net, coords = small_net(), cities(4)
    with torch.no_grad():
        torch.testing.assert_close(net(coords, "se")[2:3], net(coords[2:3], "se"), atol=1e-5, rtol=1e-4)


def test_features_in_the_frame_of_start_and_end():
    # Start (0, 0), end (0, 2): a city at (1, 0.5) is 0.5 along that line and at distance 1 from it.
    coords = torch.tensor([[[0.0, 0.0], [0.0, 1.0], [1.0, 0.5], [0.0, 2.0]]])
    f = city_features(coords, distances(coords), "pri")[0]
    torch.testing.assert_close(f[2, 4:8], torch.tensor([0.5, 1.0, -1.5, 2.0]))
    torch.testing.assert_close(f[2, 8:10], torch.tensor([-0.5, 1.0]))
    assert torch.equal(city_features(coords, distances(coords), "se")[0, :, 8:11], torch.zeros(4, 3))


def test_gradients_against_finite_differences():
    net = small_net().double()
    coords = cities(2).double()
    weight = net.heads[-1][1].weight
    direction = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def value():
        return expected_length(net.refinements(coords, "pri", 0.1)[-1], distances(coords)).sum()

    value().backward()
    slope = (weight.grad * direction).sum().item()
    step = 1e-5
    with torch.no_grad():
        weight += step * direction
        up = value().item()
        weight -= 2 * step * direction
        down = value().item()
    assert slope == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-9)


def test_expected_length_is_the_mean_over_independent_steps():
    X = torch.softmax(torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(3)), dim=1).double()
    D = distances(cities(1, n=4)).double()
    mean = 0.0
    for path in itertools.product(range(4), repeat=4):
        chance = np.prod([X[0, city, k].item() for k, city in enumerate(path)])
        mean += chance * sum(D[0, a, b].item() for a, b in itertools.pairwise(path))
    # The distance of a city to itself is 1e-7 rather than 0, so that its square root has a slope.
    assert expected_length(X, D).item() == pytest.approx(mean, abs=1e-6)


def test_cross_entropy_of_a_tour():
    X = torch.full((1, 3, 3), 1 / 3)
    assert cross_entropy(X, torch.tensor([[0, 2, 1]])).item() == pytest.approx(3 * np.log(3), abs=1e-5)


def test_rows_are_built_once_and_refuse_other_tasks():
    assert rows("pri", 7, 3) is rows("pri", 7, 3)
    with pytest.raises(InstanceError, match='expected "se"'):
        project_scores(torch.zeros(1, 7, 7), "tsp", 0.1)


@pytest.mark.parametrize(
    ("coords", "task", "message"),
    [
        (torch.zeros(1, 8, 2), "se", r"shape \(1, 8, 2\); expected \(N, 7, 2\)"),
        (torch.zeros(7, 2), "se", r"shape \(7, 2\)"),
        (torch.rand(1, 7, 2), "tsp", 'expected "se"'),
    ],
)
def test_bad_input_is_named(coords, task, message):
    with pytest.raises(InstanceError, match=message):
        small_net()(coords, task)


def test_coinciding_cities_give_finite_gradients():
    net, coords = small_net(), torch.full((2, 7, 2), 0.5)
    expected_length(net.refinements(coords, "se", 0.1)[-1], distances(coords)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)


def test_configuration_round_trip():
    config = TourConfig(network=SMALL, plan=Plan(steps=7), tasks=("pri",), tau_end=0.05)
    assert from_json(TourConfig, to_json(config)) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ('{"size": 3}', "'size'; expected one of"),
        ('{"batch": "128"}', "batch is '128'; expected int"),
        ('{"batch": true}', "batch is True; expected int"),
        ('{"tasks": ["tsp"]}', "tasks is"),
        ('{"tau": 0}', "positive"),
        ('{"plan": {"minutes": 3, "steps": 5}}', "minutes, steps"),
        ('{"network": {"width": 10}}', "multiple of 8"),
        ('{"teacher_weight": 0}', "something to learn"),
    ],
)
def test_bad_configurations_are_named(text, message):
    with pytest.raises(ConfigError, match=message):
        from_json(TourConfig, text)


def test_exported_weights_load_in_half_precision(tmp_path):
    net = small_net()
    config = {"network": dict(SMALL.__dict__), "tasks": ["se"]}
    state = {"config": config, "averaged": net.state_dict(), "curve": [{"step": 3, "seconds": 1.5, "loss": 2.0}]}
    write_checkpoint(tmp_path / "run.pt", state)
    export(tmp_path / "run.pt", tmp_path / "shipped.pt", earlier=tmp_path / "run.pt")
    lines = [json.loads(line) for line in (tmp_path / "shipped.jsonl").read_text().splitlines()]
    assert [(line["step"], line["seconds"]) for line in lines] == [(3, 1.5), (6, 3.0)]
    loaded = load_network("se", tmp_path / "shipped.pt")
    assert loaded.config == SMALL
    assert not loaded.training
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, net.state_dict()[name].half().float())
    with pytest.raises(CheckpointError, match="expected a network that knows 'pri'"):
        load_network("pri", tmp_path / "shipped.pt")
    with pytest.raises(CheckpointError, match="do not fit"):
        load_weights(TourNet(NetworkConfig(cities=7, width=8, heads=2)), tmp_path / "shipped.pt")


def test_bad_checkpoints_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="is not a file"):
        load_network("se", tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_network("se", tmp_path / "text.pt")
    with pytest.raises(CheckpointError, match='expected "se"'):
        load_network("tsp")


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    torch.save({"config": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_network("se", tmp_path / "trap.pt")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("task", ["se", "pri"])
def test_shipped_networks_are_small_and_good(task):
    assert (SHIPPED / f"tour_{task}.pt").stat().st_size <= 3_000_000
    held = random_instances(task, 100, seed=5150)
    coords, net = torch.as_tensor(held.coords, dtype=torch.float32), load_network(task)
    ours = beam_search(held, soft_tours(net, coords, task, 0.1).numpy(), width=256)
    near_optimal = random_restarts(held, starts=20, seed=1)
    assert lengths(held.coords, ours).mean() <= 1.02 * lengths(held.coords, near_optimal).mean()
    _, feasible = rounded_tours(held, soft_tours(net, coords, task, 0.01).numpy())
    assert feasible.mean() >= 0.9


@pytest.mark.parametrize("name", ["learn", "sharpen_se", "sharpen_pri", "paper_loss"])
def test_shipped_settings_can_be_read(name):
    config = read_config(SHIPPED / f"{name}.json")
    assert (name == "learn") == (config == TourConfig())
    assert (name == "paper_loss") == (config.teacher_weight == 0)
