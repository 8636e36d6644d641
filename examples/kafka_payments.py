"""Payments from a topic of Kafka, totals and alerts into two others; killed at random, and checked by a consumer.

    python examples/kafka_payments.py localhost:9092               killed 3 times
    python examples/kafka_payments.py localhost:9092 --kills 10    with so many kills; --seed 7 chooses other moments

`make kafka` starts a broker. A producer writes payments in transactions, some of which it takes back. A topology reads
those that count, keeps the total of each account in RocksDB, and writes to two topics: the new total for each payment,
and an alert for each large one. A consumer that knows nothing of statefx then reads both topics with
`isolation.level=read_committed`: each payment must be there once, and the totals of an account in their order. With
`read_uncommitted` some may be there again, and no others. It needs `pip install ".[rocksdb,kafka]"`.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import uuid
from collections import defaultdict

try:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic
except ImportError:
    raise SystemExit("This example needs a client of Kafka: pip install '.[rocksdb,kafka]'") from None

from statefx import StatefulBolt, TopologyBuilder, session, submit
from statefx.connectors.kafka import KafkaSink, KafkaSpout

ACCOUNTS, PARTITIONS = 20, 2
PAYMENTS_AT_ONCE = 100
LARGE = 900
WAIT_SECS = 30
CONFIG = {"topology.state.provider": "rocksdb"}


class Totals(StatefulBolt):
    """Keeps the total of each account."""

    outputFields = {
        "totals": "account string, payment long, total long",
        "alerts": "account string, payment long, amount long",
    }

    def initState(self, state):
        self.totals = state

    def execute(self, tup, collector):
        total = self.totals.get(tup.account, 0) + tup.amount
        self.totals.put(tup.account, total)
        collector.emit((tup.account, tup.payment, total), stream="totals")
        if tup.amount >= LARGE:
            collector.emit((tup.account, tup.payment, tup.amount), stream="alerts")


def topology(servers, topics):
    fields = "account string, payment long, amount long"
    builder = TopologyBuilder("kafka-payments")
    spout = KafkaSpout(servers, topics["payments"], "json", fields, columns=["value"], maxRows=PAYMENTS_AT_ONCE)
    builder.setSpout("payments", spout, parallelism=PARTITIONS)
    builder.setBolt("bank", Totals(), parallelism=2).fieldsGrouping("payments", "account")
    for stream in ("totals", "alerts"):
        sink = KafkaSink(servers, topics[stream], key="account")
        builder.setSink(stream, sink, parallelism=2).fieldsGrouping("bank", "account", stream=stream)
    return builder.createTopology()


def run(servers, work, topics):
    """Run on Spark what is left; say of each transaction that it is committed."""
    spark = session("kafka-payments", config={"spark.ui.enabled": "false"})
    query = submit(
        topology(servers, json.loads(topics)), spark, f"{work}/checkpoint", CONFIG, trigger={"availableNow": True}
    )
    print("interrupted before:", query.recoveries, flush=True)
    said = 0
    while not query.awaitTermination(0.02):
        if query.lastProgress and query.lastProgress["txid"] > said:
            said = query.lastProgress["txid"]
            print("committed", said, flush=True)


def pay(servers, topic, transactions, chance):
    """Write payments; return those that count, by account, in their order."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
    producer.init_transactions(WAIT_SECS)
    counting, number = defaultdict(list), 0
    for transaction in range(transactions):
        producer.begin_transaction()
        taken_back = transaction % 4 == 2
        for _ in range(PAYMENTS_AT_ONCE):
            number += 1
            account, amount = f"account-{chance.randrange(ACCOUNTS)}", chance.randrange(1, 1000)
            payment = {"account": account, "payment": number, "amount": amount}
            producer.produce(topic, json.dumps(payment), account)
            if not taken_back:
                counting[account].append((number, amount))
        # Else what is taken back may not have been in the topic, and the broker may not know of a transaction to end.
        producer.flush(WAIT_SECS)
        (producer.abort_transaction if taken_back else producer.commit_transaction)(WAIT_SECS)
    return counting


def consumed(servers, topic, level):
    """Return what a consumer of an isolation level reads of a topic, by account, in its order."""
    settings = {"isolation.level": level, "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "independent", **settings})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, left = defaultdict(list), PARTITIONS
    while left:
        message = consumer.poll(WAIT_SECS)
        if message is None:
            raise SystemExit("the broker does not answer")
        if message.error() is None:
            row = json.loads(message.value())
            found[row["account"]].append((row["payment"], row.get("total", row.get("amount"))))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            left -= 1
        else:
            raise SystemExit(str(message.error()))
    consumer.close()
    return found


def as_sets(rows):
    return {account: set(some) for account, some in rows.items()}


def expected(payments):
    """Return what must be in the two topics."""
    totals, alerts = {}, {}
    for account, some in payments.items():
        sums = [sum(amount for _, amount in some[: upto + 1]) for upto in range(len(some))]
        totals[account] = [(payment, total) for (payment, _), total in zip(some, sums, strict=True)]
        if large := [(payment, amount) for payment, amount in some if amount >= LARGE]:
            alerts[account] = large
    return {"totals": totals, "alerts": alerts}


def killed(command, chance):
    """Run until some transactions are committed, and kill it at a moment of the next ones; return the exit code."""
    left, moment = chance.randint(1, 3), chance.uniform(0, 0.5)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        for line in started.stdout:
            left -= line.startswith("committed")
            if not line.startswith("committed"):
                print(line, end="", flush=True)
            if not left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(moment)
                started.send_signal(signal.SIGKILL)
    return started.returncode


def demo(servers, kills, chance):
    suffix = uuid.uuid4().hex[:8]
    topics = {name: f"{name}-{suffix}" for name in ("payments", "totals", "alerts")}
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics.values()]).values():
        made.result(WAIT_SECS)
    payments = pay(servers, topics["payments"], 4 * (kills + 1), chance)
    with tempfile.TemporaryDirectory(prefix="statefx-payments-", ignore_cleanup_errors=True) as work:
        command = [sys.executable, __file__, servers, work, json.dumps(topics)]
        for kill in range(kills):
            print(f"start {kill + 1}: exit code {killed(command, chance)}", flush=True)
        ended = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        print(f"start {kills + 1}: exit code {ended.returncode}", flush=True)
    wrong = []
    for name, rows in expected(payments).items():
        each_once = consumed(servers, topics[name], "read_committed") == rows
        # Of a publishing that a kill has broken off these consumers see rows, which come again, and no others.
        seen = consumed(servers, topics[name], "read_uncommitted")
        if not each_once or as_sets(seen) != as_sets(rows):
            wrong.append(name)
    for made in admin.delete_topics(list(topics.values())).values():
        made.result(WAIT_SECS)
    print(f"{sum(map(len, payments.values()))} payments, of {len(payments)} accounts")
    print(f"NOT exact: {wrong}" if wrong else "exact: each payment is in the totals once, and in its order")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3].startswith("{"):
        raise SystemExit(run(*sys.argv[1:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    raise SystemExit(demo(given.servers, given.kills, random.Random(given.seed)))
