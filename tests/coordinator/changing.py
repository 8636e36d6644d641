"""What tests of a changed topology run, transaction by transaction, and what its tasks hold then."""

import shutil
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote

import redis

from statefx import Checkpoint
from statefx.admin.reading import provider_of, read_checkpoint, task_entries
from statefx.log.location import Folders
from statefx.log.log import read_state
from statefx.storage import FolderStorage
from tests.testing.topologies import lines

START = datetime(2026, 1, 1, tzinfo=UTC)
WORK = [lines(f"to be {number}", "or not", f"w{number % 7} w{number % 5} v{number % 11}") for number in range(12)]


def send(driver, numbers, topology, **more):
    """Run these transactions, each by a driver of its own, seven seconds apart."""
    for number in numbers:
        now = START + timedelta(seconds=7 * number)
        with driver.start(topology, now=now, **more) as tester:
            tester.send(WORK[number])


def held(driver, tasks, bolt="count"):
    """What each task holds, of all that can be seen: by name, keys and values in their order."""
    found = []
    for task in range(tasks):
        with Checkpoint(driver.folder).state(bolt, task) as state:
            own = {None: list(state.items())}
            for name in (*state.names()["map"], *state.names()["broadcast"]):
                with Checkpoint(driver.folder).state(bolt, task, map=name) as view:
                    own[name] = list(view.items())
            found.append(own)
    return found


def stored(folder, bolt):
    """What the store of each task has, of every kind: keys and values in their order."""
    folders = Folders(str(folder))
    found = read_checkpoint(folders)
    provider, tasks = provider_of(found, None), range(found.topology.stateful[bolt].parallelism)
    return [
        [entry for block in task_entries(provider, folders, found, bolt, task) for entry in zip(*block, strict=True)]
        for task in tasks
    ]


def log_of(driver):
    return read_state(FolderStorage(driver.folder))


def names_on(server, driver):
    """Return the names under which the server keeps something of bolts that are called ``count`` or the like."""
    head = f"{{{log_of(driver).lineage}:"
    with redis.Redis.from_url(server.url) as client:
        found = {key.decode().partition(head)[2].partition(":")[0] for key in client.scan_iter()}
    return {unquote(name) for name in found if name.startswith("count")}


def rescaled_here(folder, now, place, bolt="count"):
    """Give a bolt so many tasks here, and take that back; return what was done, and what was `stored`."""
    shutil.copytree(folder, place / "before")
    done = Checkpoint(folder).rescale({bolt: now})
    then = stored(folder, bolt)
    shutil.rmtree(folder)
    shutil.copytree(place / "before", folder)
    return done, then
