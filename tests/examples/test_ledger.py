"""The ledgers are killed at random, and come out exact; `make soak` kills them more often."""

import random
import re
import sqlite3
import sys
from contextlib import closing

import pytest

from tests.conftest import ROOT
from tests.examples.test_examples import EXAMPLES, run, told

EXACT = "exact: each transfer once, no money made or lost, no account below zero"
STATES = ["GENERATION", "PREPARING", "COMMITTING", "COMMITTED", "ROLLED_BACK", "CHECKPOINT"]


def hits(said):
    return {state: int(times) for state, times in re.findall(r"^  ([A-Z_]+) +(\d+) times$", said, re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.soak
def test_a_ledger_without_spark_is_exact_however_often_it_is_killed(tmp_path):
    said = run("ledger_plain.py", "--kills", "3", folder=tmp_path)
    assert EXACT in said.splitlines(), said
    assert sum(hits(said).values()) == 3, said
    assert re.search(r"^[1-9]\d* transfers applied, [1-9]\d* refused", said, re.MULTILINE), said


@pytest.mark.soak
@pytest.mark.slow
def test_a_ledger_is_exact(programs, tmp_path, monkeypatch):
    """What the demo starts and kills."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import ledger_kills
    import ledger_rules

    ledger = ledger_kills.Killed(tmp_path, "ledger.py", random.Random(0))
    ledger.feed()
    (tmp_path / "end").touch()
    told(programs, "ledger.py", tmp_path)
    wrong, applied, refused = ledger_rules.check(tmp_path)
    assert not any(wrong.values())
    assert applied
    assert refused
    ledger.look()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("program", "kills", "each"), [("ledger.py", 40, 2), ("ledger_plain.py", 160, 10)])
def test_a_ledger_that_is_killed_in_every_state_of_its_log(tmp_path, program, kills, each):
    said = run(program, "--kills", str(kills), "--each", str(each), folder=tmp_path, timeout_secs=3600)
    sys.stdout.write(said)  # the table, which `make soak` shows
    assert EXACT in said.splitlines(), said
    found = hits(said)
    assert sum(found.values()) >= kills
    assert min(found.get(state, 0) for state in STATES) >= each, said


# ---- What the checks of the ledgers find: each is given a ledger that is damaged in the way that it is named for.


NUMBER, CURRENCY, ACCOUNT, AMOUNT, BALANCE = range(5)
TRANSFERS = [
    (1, "EUR", "ann", "bob", 30),
    (2, "EUR", "bob", "cid", 130),
    (3, "EUR", "ann", "cid", 71),  # refused: ann has 70
    (4, "USD", "ann", "bob", 100),
]


@pytest.fixture
def rules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import ledger_rules  # examples are programs, in no package

    return ledger_rules


class Balances(dict):
    def put(self, key, value):
        self[key] = value


class Books:
    def __init__(self, rules):
        self.balances, self.entries, self.refused = Balances(), [], []
        for each in TRANSFERS:
            entries = rules.move(self.balances, *each)
            self.entries += entries or []
            self.refused += [each] if entries is None else []

    def of(self, transfer):
        return [each for each in self.entries if each[NUMBER] == transfer]

    def change(self, transfer, field, change):
        self.entries = [
            (*each[:field], change(each[field]), *each[field + 1 :]) if each[NUMBER] == transfer else each
            for each in self.entries
        ]

    def found(self, rules):
        with closing(sqlite3.connect(":memory:")) as database:
            database.execute("create table transfers (transfer, currency, source, target, amount)")
            database.execute("create table refused (transfer, currency, source, target, amount)")
            database.execute("create table entries (transfer, currency, account, amount, balance)")
            for table, content in [("transfers", TRANSFERS), ("refused", self.refused), ("entries", self.entries)]:
                database.executemany(f"insert into {table} values (?, ?, ?, ?, ?)", content)
            return {name for name, query in rules.CHECKS.items() if database.execute(query).fetchall()}


def test_a_ledger_that_is_right_passes_all_checks(rules):
    books = Books(rules)
    assert ([each[NUMBER] for each in books.refused], len(books.entries)) == ([3], 6)
    assert books.found(rules) == set()


DAMAGES = [
    ("transfers that were applied not once", "doubled", lambda books: books.entries.extend(books.of(4))),
    ("transfers that were applied not once", "half", lambda books: books.entries.remove(books.of(1)[0])),
    (
        "transfers that were applied not once",
        "unequal halves",
        lambda books: books.change(4, AMOUNT, lambda amount: max(amount, -99)),
    ),
    ("transfers that were applied not once", "to oneself", lambda books: books.change(1, ACCOUNT, lambda _: "ann")),
    (
        "transfers that are missing",
        "an applied one",
        lambda books: [books.entries.remove(each) for each in books.of(4)],
    ),
    ("transfers that are missing", "a refused one", lambda books: books.refused.clear()),
    ("transfers that were both applied and refused", "both", lambda books: books.refused.append(TRANSFERS[0])),
    (
        "transfers that nobody made",
        "applied",
        lambda books: books.entries.extend((9, *each[1:]) for each in books.of(1)),
    ),
    ("transfers that nobody made", "refused", lambda books: books.refused.append((9, "EUR", "ann", "bob", 1))),
    ("transfers that were changed", "currency", lambda books: books.change(4, CURRENCY, lambda _: "GBP")),
    ("transfers that were changed", "amount", lambda books: books.change(4, AMOUNT, lambda amount: amount // 2)),
    (
        "transfers that were changed",
        "direction",
        lambda books: books.change(4, ACCOUNT, {"ann": "bob", "bob": "ann"}.get),
    ),
    ("accounts below zero", "an overdraft", lambda books: books.change(4, BALANCE, lambda _: -1)),
    (
        "balances that are not the sum of their entries",
        "a cent more",
        lambda books: books.change(2, BALANCE, lambda balance: balance + 1),
    ),
    (
        "balances that are not the sum of their entries",
        "a state that was not rolled back",
        lambda books: books.change(1, BALANCE, lambda balance: balance - 30),
    ),
    ("money that was made or lost", "lost", lambda books: books.entries.remove(books.of(4)[1])),
    ("money that was made or lost", "made", lambda books: books.entries.append(books.of(4)[1])),
]


@pytest.mark.parametrize(
    ("check", "damage"), [pytest.param(check, damage, id=f"{check}: {what}") for check, what, damage in DAMAGES]
)
def test_a_ledger_that_is_damaged_is_found_by_the_check_of_that_name(rules, check, damage):
    books = Books(rules)
    damage(books)
    assert check in books.found(rules)


def test_each_check_is_given_a_damage(rules):
    assert {check for check, _, _ in DAMAGES} == set(rules.CHECKS)
