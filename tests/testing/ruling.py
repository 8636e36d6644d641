"""Rows that are judged by rules which change all the time, and a recount of how each must have been judged."""

import random

from statefx import StatefulBolt, TopologyBuilder
from statefx.connectors import MemoryTransactionalSpout

PAYMENTS, RULES = "number long, account string", "name string, cents long"
NAMES, ACCOUNTS = ["largest", "most", "night"], [f"account-{number}" for number in range(5)]


def given(seed, partitions=2, each=6):
    """Return partitions of payments, each with a number of its own, and of rules; null takes a rule back."""
    chance = random.Random(seed)
    payments = [
        [(part * 1000 + place, chance.choice(ACCOUNTS)) for place in range(chance.randint(1, each))]
        for part in range(partitions)
    ]
    rules = [
        [(chance.choice(NAMES), chance.choice([None, *range(1, 9)])) for _ in range(chance.randint(0, each))]
        for _ in range(partitions)
    ]
    return payments, rules


class Judge(StatefulBolt):
    def open(self, context):
        self.context = context

    def initState(self, state):
        self.judged = state
        self.rules = state.broadcast("rules")

    def executeBroadcast(self, rule, collector):
        if rule.cents is None:
            self.rules.delete(rule.name)
        else:
            # What is put depends on what was there: of two rules in another order something else becomes.
            self.rules.put(rule.name, self.rules.get(rule.name, 0) * 10 % 9973 + rule.cents)

    def execute(self, payment, collector):
        times = self.judged.get(payment.number, (0,))[0]
        self.judged.put(payment.number, (times + 1, self.context.txid, *self.rules.items()))


def ruled(payments, rules, judge=None, tasks=2, take=1):
    builder = TopologyBuilder("ruled")
    builder.setSpout("payments", MemoryTransactionalSpout(payments, PAYMENTS, takePerBatch=take))
    builder.setSpout("rules", MemoryTransactionalSpout(rules, RULES, takePerBatch=take), len(rules))
    judges = builder.setBolt("judge", judge or Judge(), tasks)
    judges.fieldsGrouping("payments", "account").broadcastGrouping("rules")
    return builder.createTopology()


def recounted(payments, rules, take=1):
    """Return what the state must be: each payment is judged by all rules up to the end of its own transaction."""
    judged, known = {}, {}
    for txid in range(1, 1 + max(-(-len(part) // take) for part in (*payments, *rules))):
        taken = slice((txid - 1) * take, txid * take)
        for name, cents in (rule for part in rules for rule in part[taken]):
            if cents is None:
                known.pop(name, None)
            else:
                known[name] = known.get(name, 0) * 10 % 9973 + cents
        for number, _ in (payment for part in payments for payment in part[taken]):
            judged[number] = (1, txid, *sorted(known.items()))
    return judged, known
