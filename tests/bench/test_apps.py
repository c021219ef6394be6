"""The applications, on real ranks, against scikit-learn and NumPy."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

import hocket as hk
from hocket.bench.apps.kmeans import ClusterSearch, inertia, numbers_by_rank
from hocket.bench.apps.knn import NearestNeighbours
from hocket.bench.apps.matmul import MatrixProduct
from hocket.errors import InvalidArgument, WrongResult

from ..naming import raises

pytestmark = pytest.mark.timeout(120)
PROBLEMS = {"matmul": (MatrixProduct, 70), "knn": (NearestNeighbours, 301), "kmeans": (ClusterSearch, 333)}


def solved(comm, name):
    kind, scale = PROBLEMS[name]
    return kind(scale, seed=3).solve(comm)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("name", PROBLEMS)
def test_solutions_are_those_of_scikit_learn_and_numpy(name, num_ranks):
    kind, scale = PROBLEMS[name]
    problem = kind(scale, seed=3)
    solution, *others = hk.spawn(solved, num_ranks, name)
    assert others == [None] * (num_ranks - 1)
    problem.check(solution)
    np.testing.assert_allclose(problem.solve_alone(), solution, rtol=1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_wrong_solution_is_found(name):
    kind, scale = PROBLEMS[name]
    problem = kind(scale, seed=3)
    wrong = problem.solve_alone().copy()
    wrong.flat[0] += 1
    with pytest.raises(WrongResult):
        problem.check(wrong)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_smallest_scale_is_solved_and_a_smaller_one_refused(name):
    kind, _ = PROBLEMS[name]
    problem = kind(kind.least_scale)
    problem.check(problem.solve_alone())
    with raises(InvalidArgument, names=(name, str(kind.least_scale), str(kind.least_scale - 1))):
        kind(kind.least_scale - 1)


def test_clusters_without_rows_are_those_of_scikit_learn():
    rows = np.random.default_rng(0).standard_normal((200, 16))
    rows[5:9] = rows[4]  # rows from which clusters begin: all but the first of these five get nothing
    wanted = KMeans(12, init=rows[:12], n_init=1, max_iter=12, tol=0, algorithm="lloyd").fit(rows).inertia_
    assert inertia(rows, 12) == pytest.approx(wanted, rel=1e-9)


def test_the_numbers_of_clusters_are_dealt_out_evenly():
    for size in (1, 2, 3, 8):
        dealt = numbers_by_rank(size)
        assert sorted(k for each in dealt for k in each) == list(range(1, 25))
        work = [sum(each) for each in dealt]
        assert max(work) <= min(work) + 24


def test_virtual_ranks_spend_the_time_of_their_share():
    from hocket.sim import Link

    problem = MatrixProduct(64)
    problem.seconds_per_item = 1e-3
    simulated = hk.simulate(problem.solve, 8, fabric=Link.of(1.0, 10.0), moves_data=False)
    assert 8e-3 < simulated.seconds < 9e-3  # 64 rows, 8 to each; and the messages
