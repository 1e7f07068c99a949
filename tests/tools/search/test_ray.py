"""The same search on a Ray cluster of two workers, one of which goes away in the middle. Needs `pocketune[ray]`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from converter.backend.targets import target
from converter.tools.search.budgets import parse_budgets
from converter.tools.search.evaluator import Evaluator, SearchJournal
from converter.tools.search.explore import Explorer
from converter.tools.search.subject import Evaluation
from converter.tools.search.workers import Ray
from tests.tools.search.common import NAMED, fake, space
from tests.tools.search.mortal import Mortal
from tests.tools.search.run_fake import EFFORT, PRIOR, run

pytest.importorskip("ray", reason="there is no Ray: pip install 'pocketune[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 10**8})
    yield made
    ray.shutdown()
    made.shutdown()


def slow_fake(job: Evaluation) -> dict[str, Any]:
    time.sleep(0.05)
    return fake(job)


def test_a_worker_goes_away_and_the_result_is_the_same(cluster: Any) -> None:
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=10**8) for _ in range(2)]
    workers = Ray(slow_fake, cluster.address)

    class Watched:
        done = 0

        def each(self, jobs: Sequence[Evaluation]) -> Iterator[tuple[int, dict[str, Any]]]:
            for found in workers.each(jobs):
                self.done += 1
                if self.done == 30:
                    cluster.remove_node(nodes[1], allow_graceful=False)
                yield found

        def close(self) -> None:
            workers.close()

    watched = Watched()
    budgets = parse_budgets(["memory=60%"], target("litert-2"))
    findings = Explorer(space(), Evaluator(watched, SearchJournal(None, {})), EFFORT, budgets).run(NAMED, PRIOR)
    assert watched.done > 40
    assert findings == run(None).findings
    watched.close()


def test_what_a_dead_process_had_is_done_again(cluster: Any, tmp_path: Path) -> None:
    cluster.add_node(num_cpus=2, object_store_memory=10**8)
    workers = Ray(Mortal(tmp_path), cluster.address)
    jobs = [Evaluation(str(number)) for number in range(4)]
    assert dict(workers.each(jobs)) == {number: {"of": str(number)} for number in range(4)}
    workers.close()
