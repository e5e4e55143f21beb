"""Routing problems: what is drawn, what is read, what is refused."""

import numpy as np
import pytest
from tour_oracles import scattered, walk

from linsat_studies.tsp import data
from linsat_studies.tsp.data import InstanceError, Instances, random_instances, read_cities


def test_test_instances_are_the_literatures_and_leave_the_global_state_alone():
    np.random.seed(1234)
    expected = np.random.uniform(size=(10000, 20, 2))
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    instances = data.test_instances("pri")
    assert np.array_equal(instances.coords, expected)
    assert np.array_equal(np.random.get_state()[1], before)
    assert (instances.start == 0).all()
    assert (instances.end == 19).all()
    assert (instances.priority == 1).all()
    assert instances.within == 5
    assert np.array_equal(data.test_instances("se", 7).coords, expected[:7])
    assert data.test_instances("se", 7).task == "se"


def test_random_instances_repeat_with_their_seed_and_refuse_the_test_seed():
    first, second = random_instances("pri", 5, n=9, seed=3), random_instances("pri", 5, n=9, seed=3)
    assert np.array_equal(first.coords, second.coords)
    assert not np.array_equal(first.coords, random_instances("pri", 5, n=9, seed=4).coords)
    assert first.coords.shape == (5, 9, 2)
    with pytest.raises(InstanceError, match="kept for the test instances"):
        random_instances("se", 5, seed=1234)


def test_a_generator_moves_on():
    generator = np.random.default_rng(0)
    assert not np.array_equal(
        random_instances("se", 2, seed=generator).coords, random_instances("se", 2, seed=generator).coords
    )


@pytest.mark.parametrize("task", ["se", "pri"])
def test_canonical_relabels_and_maps_back(task):
    instances = scattered(task, 40, 8, seed=1, within=3)
    canonical, order = instances.canonical()
    assert (canonical.start == 0).all()
    assert (canonical.end == 7).all()
    assert canonical.task == task
    rows = np.arange(40)
    assert np.array_equal(order[rows, 0], instances.start)
    assert np.array_equal(order[rows, 7], instances.end)
    if task == "pri":
        assert (canonical.priority == 1).all()
        assert np.array_equal(order[rows, 1], instances.priority)
    tours = np.array([np.random.default_rng(i).permutation(8) for i in range(40)])
    back = np.take_along_axis(order, tours, axis=1)
    for i in range(40):
        assert walk(canonical.coords[i], tours[i]) == pytest.approx(walk(instances.coords[i], back[i]))


def test_slices_and_masks_choose_instances():
    instances = scattered("pri", 6, 7, seed=2)
    part = instances[2:4]
    assert len(part) == 2
    assert np.array_equal(part.priority, instances.priority[2:4])
    assert np.array_equal(instances[np.arange(6) % 2 == 0].coords, instances.coords[::2])
    with pytest.raises(InstanceError, match=r"instances\[i : i \+ 1\]"):
        instances[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"coords": np.zeros((4, 2))}, r"expected \(N, n, 2\)"),
        ({"coords": np.full((2, 5, 2), np.nan)}, "not finite"),
        ({"start": np.array([0.0, 1.0])}, "start has dtype float64"),
        ({"end": np.array([1, 2, 3])}, r"shape \(3,\)"),
        ({"end": 5}, "end holds city 5"),
        ({"end": 0}, "end and start of instance 0 are both city 0"),
        ({"priority": 4}, "priority and end of instance 0"),
        ({"priority": 0}, "priority and start of instance 0"),
        ({"within": None}, "expected both"),
        ({"within": 4}, "within is 4"),
        ({"within": 0}, "within is 0"),
    ],
)
def test_malformed_problems_are_refused_by_name(change, message):
    arguments = {"coords": np.random.default_rng(0).random((2, 5, 2)), "start": 0, "end": 4, "priority": 1, "within": 2}
    with pytest.raises(InstanceError, match=message):
        Instances(**(arguments | change))


def test_unknown_task_is_refused():
    with pytest.raises(InstanceError, match="task is 'tsp'"):
        random_instances("tsp", 3, seed=0)


@pytest.mark.parametrize(
    ("text", "names", "coords"),
    [
        ("Ulm,1,2\nBonn,3,4\n", ("Ulm", "Bonn"), [[1, 2], [3, 4]]),
        ("1,2\n\n3,4\n5,6", ("0", "1", "2"), [[1, 2], [3, 4], [5, 6]]),
        ("y,name,x\n2,Ulm,1\n4,Bonn,3\n", ("Ulm", "Bonn"), [[1, 2], [3, 4]]),
        ("\ufeffx,y\n1e0, 2\n3,4\n", ("0", "1"), [[1, 2], [3, 4]]),
    ],
)
def test_own_cities_are_read_with_and_without_names(tmp_path, text, names, coords):
    path = tmp_path / "cities.csv"
    path.write_text(text, encoding="utf-8")
    cities = read_cities(path)
    assert cities.names == names
    assert cities.coords.tolist() == coords


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,1,2\n", "holds 1 city"),
        ("a,1,2\nb,one,3\n", "line 2: x is 'one'"),
        ("a,1,2\nb,1,inf\n", "line 2: y is 'inf'"),
        ("a,1,2\na,3,4\n", "line 2: city 'a' comes twice"),
        ("a,1,2\nb,1\n", "line 2 has 2 column"),
        ("a,b,c,d\n", "expected name,x,y"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, text, message):
    path = tmp_path / "cities.csv"
    path.write_text(text)
    with pytest.raises(InstanceError, match=message):
        read_cities(path)


def test_cities_are_found_by_name_or_number(tmp_path):
    path = tmp_path / "cities.csv"
    path.write_text("Ulm,1,2\nBonn,3,4\n")
    cities = read_cities(path)
    assert cities.number("Bonn") == 1
    assert cities.number("0") == 0
    with pytest.raises(InstanceError, match="no city is called 'Rom'"):
        cities.number("Rom")
