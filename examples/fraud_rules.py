"""Payments from a topic of Kafka, judged by rules from another one, which change meanwhile; killed, and recounted.

    python examples/fraud_rules.py localhost:9092               killed once
    python examples/fraud_rules.py localhost:9092 --kills 5     with so many kills; --seed 7 chooses other moments

`make kafka` starts a broker. A rule refuses a payment if its account has made more than so many payments, or paid more
than so much, in the minutes before it. While the topology runs, the producer writes payments, and rules that come,
change and go. Each of the four tasks is given every rule, before the payments of the same transaction. So payments that
are in one transaction are judged by the same rules, whichever task they are in, and however often it is tried.

Each decision says of which transaction it is, and which rule was the last one known. A consumer that knows nothing of
statefx reads them with `isolation.level=read_committed`, and a plain recount judges each payment again: each must be
decided once, in its account's order, by the rules up to that one. It needs `pip install ".[rocksdb,kafka]"`.
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

from statefx import Checkpoint, StatefulBolt, TopologyBuilder, session, submit
from statefx.connectors.kafka import KafkaSink, KafkaSpout

ACCOUNTS, TASKS = 12, 4
PARTITIONS = {"payments": 2, "rules": 1, "decisions": 2}  # one for rules: they have an order
PAYMENTS_AT_ONCE, ROUNDS = 60, 4
NAMES = ["spree", "large", "night", "sum"]
MINUTES_MAX = 60
WAIT_SECS = 60
CONFIG = {"topology.state.provider": "rocksdb"}

PAYMENTS = "account string, payment long, cents long, minute long"
RULES = "number long, name string, minutes long, payments long, cents long"


class Decide(StatefulBolt):
    """Keeps what each account has paid in the last hour, and refuses what is against a rule."""

    outputFields = "account string, payment long, refused_by array<string>, rule long, txid long"

    def initState(self, state):
        self.recent = state.map("recent")
        self.rules = state.broadcast("rules")
        self.last = state.broadcast("last")

    def executeBroadcast(self, rule, collector):
        if rule.minutes is None:
            self.rules.delete(rule.name)
        else:
            self.rules.put(rule.name, (rule.minutes, rule.payments, rule.cents))
        self.last.put("number", rule.number)

    def execute(self, tup, collector):
        recent = [each for each in self.recent.get(tup.account, []) if each[0] > tup.minute - MINUTES_MAX]
        recent.append((tup.minute, tup.cents))
        self.recent.put(tup.account, recent)
        refused_by = []
        for name, (minutes, payments, cents) in self.rules.items():
            paid = [amount for minute, amount in recent if minute > tup.minute - minutes]
            if len(paid) > payments or sum(paid) > cents:
                refused_by.append(name)
        known = self.last.get("number", 0)
        collector.emit((tup.account, tup.payment, refused_by, known, collector.attempt.txid))


def topology(servers, topics):
    builder = TopologyBuilder("fraud-rules")
    for name, fields in (("payments", PAYMENTS), ("rules", RULES)):
        spout = KafkaSpout(servers, topics[name], "json", fields, columns=["value"], maxRows=PAYMENTS_AT_ONCE)
        builder.setSpout(name, spout, parallelism=PARTITIONS[name])
    decide = builder.setBolt("decide", Decide(), parallelism=TASKS)
    decide.fieldsGrouping("payments", "account").broadcastGrouping("rules")
    sink = KafkaSink(servers, topics["decisions"], key="account")
    builder.setSink("decisions", sink, parallelism=2).fieldsGrouping("decide", "account")
    return builder.createTopology()


def run(servers, work, topics, trigger):
    """Run on Spark; say of each transaction that it is committed."""
    spark = session("fraud-rules", config={"spark.ui.enabled": "false"})
    made = topology(servers, json.loads(topics))
    query = submit(made, spark, f"{work}/checkpoint", CONFIG, trigger=json.loads(trigger))
    print("interrupted before:", query.recoveries, flush=True)
    said = 0
    while not query.awaitTermination(0.02):
        if query.lastProgress and query.lastProgress["txid"] > said:
            said = query.lastProgress["txid"]
            print("committed", said, flush=True)


class Writer:
    """Writes payments, and rules among them; keeps what it has written."""

    def __init__(self, servers, topics, chance):
        self.topics, self.chance = topics, chance
        self.producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
        self.payments, self.rules, self.minute = [], [], 0

    def write(self):
        """Write some payments, and a rule before and behind them."""
        self.write_rule()
        for _ in range(PAYMENTS_AT_ONCE // 2):
            self.minute += self.chance.random() < 0.3
            account, cents = f"account-{self.chance.randrange(ACCOUNTS)}", self.chance.randrange(1, 1000)
            payment = {"account": account, "payment": len(self.payments), "cents": cents, "minute": self.minute}
            self.payments.append(payment)
            self.producer.produce(self.topics["payments"], json.dumps(payment), account)
        self.write_rule()
        self.producer.flush(WAIT_SECS)

    def write_rule(self):
        rule = {"number": len(self.rules) + 1, "name": self.chance.choice(NAMES)}
        if self.chance.random() < 0.8:
            minutes, payments = self.chance.randrange(1, MINUTES_MAX), self.chance.randrange(3, 20)
            rule |= {"minutes": minutes, "payments": payments, "cents": self.chance.randrange(900, 9000)}
        self.rules.append(rule)  # without minutes it takes back what the name stood for
        self.producer.produce(self.topics["rules"], json.dumps(rule))


def rules_upto(rules, number=None):
    """Return the rules that hold when so many have been written, or all."""
    known = {rule["name"]: rule for rule in rules[:number]}
    return {name: rule for name, rule in sorted(known.items()) if "minutes" in rule}


def recount(payments, rules, decisions):
    """Return what is wrong with the decisions: by account, in the order of their topic."""
    wrong = []
    for account in {payment["account"] for payment in payments} | set(decisions):
        made = [payment for payment in payments if payment["account"] == account]
        if [decision["payment"] for decision in decisions[account]] != [payment["payment"] for payment in made]:
            wrong.append(f"{account}: not each payment once, in its order")
            continue
        for place, decision in enumerate(decisions[account]):
            refused_by, now = [], made[place]["minute"]
            for name, rule in rules_upto(rules, decision["rule"]).items():
                paid = [each["cents"] for each in made[: place + 1] if each["minute"] > now - rule["minutes"]]
                if len(paid) > rule["payments"] or sum(paid) > rule["cents"]:
                    refused_by.append(name)
            if decision["refused_by"] != refused_by:
                wrong.append(f"payment {decision['payment']}: {decision} and not {refused_by}")
    known = defaultdict(set)
    for decision in (each for some in decisions.values() for each in some):
        known[decision["txid"]].add(decision["rule"])
    wrong += [f"transaction {txid} was judged by rules {some}" for txid, some in known.items() if len(some) > 1]
    in_order = [max(known[txid]) for txid in sorted(known)]
    if in_order != sorted(in_order):
        wrong.append(f"a rule was forgotten: {in_order}")
    return wrong


def consumed(servers, topic):
    """Return the decisions that a consumer reads, by account, in their order."""
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "independent", **settings})
    left = PARTITIONS["decisions"]
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(left)])
    found = defaultdict(list)
    while left:
        message = consumer.poll(WAIT_SECS)
        if message is None:
            raise SystemExit("the broker does not answer")
        if message.error() is None:
            row = json.loads(message.value())
            found[row["account"]].append(row)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            left -= 1
        else:
            raise SystemExit(str(message.error()))
    consumer.close()
    return found


def killed(command, writer, chance):
    """Write while it runs, after each transaction; kill it at a moment of a later one; return the exit code."""
    left = ROUNDS
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        for line in started.stdout:
            if not line.startswith("committed"):
                print(line, end="", flush=True)
            elif left:
                writer.write()
                left -= 1
            else:
                continue
            if not left:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(chance.uniform(0, 0.3))
                started.send_signal(signal.SIGKILL)
    return started.returncode


def demo(servers, kills, chance):
    suffix = uuid.uuid4().hex[:8]
    topics = {name: f"{name}-{suffix}" for name in PARTITIONS}
    admin = AdminClient({"bootstrap.servers": servers})
    new = [NewTopic(topics[name], partitions, 1) for name, partitions in PARTITIONS.items()]
    for made in admin.create_topics(new).values():
        made.result(WAIT_SECS)
    writer = Writer(servers, topics, chance)
    writer.write()
    with tempfile.TemporaryDirectory(prefix="statefx-fraud-", ignore_cleanup_errors=True) as work:
        command = [sys.executable, __file__, servers, work, json.dumps(topics)]
        for kill in range(kills):
            print(f"start {kill + 1}: exit code {killed([*command, 'null'], writer, chance)}", flush=True)
            writer.write()  # while nothing runs
        ended = subprocess.run([*command, '{"availableNow": true}'], check=False, stdout=subprocess.DEVNULL)
        print(f"start {kills + 1}: exit code {ended.returncode}", flush=True)
        with Checkpoint(f"{work}/checkpoint").state("decide", map="rules", byTask=True) as view:
            held = dict(view.items())
    decisions = consumed(servers, topics["decisions"])
    wrong = recount(writer.payments, writer.rules, decisions)
    last = {name: (rule["minutes"], rule["payments"], rule["cents"]) for name, rule in rules_upto(writer.rules).items()}
    if held != {(task, name): rule for task in range(TASKS) for name, rule in last.items()}:
        wrong.append(f"not all tasks hold the rules {last}: {held}")
    for made in admin.delete_topics(list(topics.values())).values():
        made.result(WAIT_SECS)
    refused = sum(bool(decision["refused_by"]) for some in decisions.values() for decision in some)
    print(f"{len(writer.payments)} payments, {refused} refused; {len(writer.rules)} rules")
    print(*wrong[:10], sep="\n", end="\n" if wrong else "")
    print("NOT exact" if wrong else "exact: each payment is decided once, by the rules of its transaction")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[3].startswith("{"):
        raise SystemExit(run(*sys.argv[1:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers")
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    raise SystemExit(demo(given.servers, given.kills, random.Random(given.seed)))
