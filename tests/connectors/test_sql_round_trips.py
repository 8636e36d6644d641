"""What SqlSink has written, read by SqlPartitionedSpout: see `tests.connectors.round_trips`."""

import pyarrow as pa
import pytest

from statefx.connectors.sql import SqlPartitionedSpout, SqlSink
from statefx.operators.schema import to_ddl
from tests.connectors.round_trips import RoundTrips, emitted
from tests.sinks.database import SqliteDatabase


class TestSqlite(RoundTrips):
    def sink(self, place, schema):
        return SqlSink(SqliteDatabase(place).url, "written")

    def written(self, rows):
        """SQLite keeps zero without its sign."""
        for number, field in enumerate(rows.schema):
            if pa.types.is_floating(field.type):
                unsigned = [0.0 if value == 0 else value for value in rows.column(number).to_pylist()]
                rows = rows.set_column(number, field, pa.array(unsigned, field.type))
        return rows

    def read(self, place, schema):
        """The spout needs an order, which rows of the sink do not have."""
        database = SqliteDatabase(place)
        ((made,),) = database.run("select sql from sqlite_master where name = 'written'")
        database.run(made.replace("written (", "ordered (id integer primary key,", 1))
        database.run("insert into ordered select rowid, * from written")
        return emitted(SqlPartitionedSpout(database.url, "ordered", "id", to_ddl(schema)), schema, place)


@pytest.mark.slow
class TestPostgres(RoundTrips):
    examples = 10

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _server(cls, postgres):
        cls.server, cls.name = postgres, postgres.database()

    def sink(self, place, schema):
        return SqlSink(self.server.url(self.name), place.name)

    def read(self, place, schema):
        self.server.run(self.name, f'alter table "{place.name}" add column id bigint generated always as identity')
        spout = SqlPartitionedSpout(self.server.url(self.name), place.name, "id", to_ddl(schema))
        return emitted(spout, schema, place)
