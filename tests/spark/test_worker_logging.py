"""What bolts log in Spark's workers comes out as the driver's loggers are set."""

import logging
import os
import re
import subprocess
import sys

import pytest

from statefx.spark import worker
from tests.conftest import ROOT


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.spark
def test_what_bolts_log_at_info_is_on_the_workers_stderr(place):
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.logging_bolts", str(place)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^[\d-]+ [\d:,]+ INFO shop\.bolts: counted a$", done.stderr, re.MULTILINE)
    assert "is not to be heard" not in done.stderr


@pytest.fixture
def loggers(monkeypatch):
    """The root logger, whose level is put back."""
    root = logging.getLogger()
    monkeypatch.setattr(worker, "_logged_as", {})
    level = root.level
    yield root
    root.setLevel(level)
    logging.getLogger("shop.bolts").setLevel(logging.NOTSET)


def test_a_worker_takes_over_the_levels_that_the_driver_has_set(loggers, monkeypatch):
    monkeypatch.setattr(loggers, "handlers", [])  # here, and not in the fixture: pytest adds its own for each phase
    loggers.setLevel(logging.ERROR)
    logging.getLogger("shop.bolts").setLevel(logging.DEBUG)
    levels = worker.levels_here()
    assert (levels[""], levels["shop.bolts"]) == (logging.ERROR, logging.DEBUG)
    worker.log_as({"": logging.INFO, "shop.bolts": logging.WARNING})
    worker.log_as({"": logging.INFO, "shop.bolts": logging.WARNING})
    assert len(loggers.handlers) == 1
    assert (loggers.level, logging.getLogger("shop.bolts").level) == (logging.INFO, logging.WARNING)


def test_logging_that_a_worker_has_set_up_itself_stays(loggers, monkeypatch):
    own = logging.NullHandler()
    monkeypatch.setattr(loggers, "handlers", [own])
    loggers.setLevel(logging.ERROR)
    worker.log_as({"": logging.DEBUG})
    assert (loggers.handlers, loggers.level) == ([own], logging.ERROR)
