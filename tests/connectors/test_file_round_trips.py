"""Files of FileSink, read by FilePartitionedSpout: see `tests.connectors.round_trips`."""

import os

import pyarrow as pa

from statefx.connectors.files import FilePartitionedSpout, FileSink, committedFiles
from statefx.operators.schema import to_ddl
from tests.connectors.round_trips import RoundTrips, emitted


class InFiles(RoundTrips):
    format: str

    def sink(self, place, schema):
        return FileSink(place / "out", self.format)

    def read(self, place, schema):
        """Spouts refuse the folder of a sink, which has uncommitted files as well."""
        (place / "in").mkdir()
        for path in committedFiles(place / "out"):
            os.link(path, place / "in" / os.path.basename(path))
        return emitted(FilePartitionedSpout(place / "in", self.format, to_ddl(schema)), schema, place)


class TestParquet(InFiles):
    format = "parquet"

    def refuses(self, kind):
        return False


class TestJson(InFiles):
    format = "json"


class TestCsv(InFiles):
    format = "csv"

    def refuses(self, kind):
        return pa.types.is_nested(kind) or pa.types.is_binary(kind)
