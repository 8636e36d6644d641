"""The queries of the benchmark on few events, against a plain computation."""

import pytest

from statefx.testing import TopologyTester
from tests.benchmarks.systems.nexmark_queries import expected, topology


@pytest.mark.parametrize("query", ["q5", "q7", "q8", "q11"])
def test_a_query_finds_what_a_plain_computation_finds(query, tmp_path):
    size = 6, 500, 50
    with TopologyTester(topology(query, *size), tmp_path) as tester:
        tester.drain()
        assert dict(tester.state("results")) == expected(query, *size)
        assert len(tester.state("results")) > 5
