"""A Ray cluster of several nodes on this machine."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

IGNORED_RAY_WARNINGS = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own processes and sockets
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
"""Marks of a module whose tests use a cluster."""


@contextmanager
def ray_cluster(settings: Sequence[dict[str, str]]) -> Iterator[Any]:
    """A cluster whose first node has no processor for actors, and nodes with one each, with these variables set."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        cluster.extra_nodes = [cluster.add_node(num_cpus=1, env_vars=variables) for variables in settings]
        ray.init(address=cluster.address)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def free_processors() -> float:
    """The processors that no actor has."""
    return float(sys.modules["ray"].available_resources().get("CPU", 0))
