"""What an empty transaction costs with and without sinks, without Spark: from what is sent until it is committed.

All of the protocol is in it, on the file system that ``--work`` is on: the log's records and the sinks' markers.
"""

from __future__ import annotations

import time

from measuring import arguments, latency

from statefx import BasicBolt, TopologyBuilder
from statefx.connectors.files import FileSink
from statefx.connectors.sql import SqlSink
from statefx.testing import TopologyTester, rows


class Nothing(BasicBolt):
    """Is there because a topology without sinks has to have somebody who reads."""

    def execute(self, tup: object, collector: object) -> None:
        pass


parser = arguments(__doc__)
parser.add_argument("--sinks", type=int, required=True)
args = parser.parse_args()
url = f"sqlite:///{args.work}/db"
sinks = [FileSink(args.work / "a"), FileSink(args.work / "b", "csv"), SqlSink(url, "words")][: args.sinks]
builder = TopologyBuilder("commits")
builder.setStream("words", rows("word string"))
for number, sink in enumerate(sinks):
    builder.setSink(f"sink-{number}", sink).shuffleGrouping("words")
builder.setBolt("nothing", Nothing()).shuffleGrouping("words")
spans = []
with TopologyTester(builder.createTopology(), args.work / "checkpoint") as tester:
    for _ in range(args.warmup + args.batches):
        started = time.perf_counter()
        tester.send({"words": []})
        spans.append((time.perf_counter() - started) * 1000)
latency(args, spans, sinks=args.sinks)
