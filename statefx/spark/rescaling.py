"""`rescale` as users call it: on the executors of a session, if they give one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from statefx.admin.parallel import Here
from statefx.admin.reading import Progress
from statefx.admin.rescaling import Rescaling, rescale_checkpoint
from statefx.admin.routing import GroupingKey
from statefx.errors import StatefxError
from statefx.spark.failures import unburied
from statefx.spark.parallel import Executors
from statefx.spark.session import check_session


def rescale(
    checkpointLocation: str | os.PathLike[str],
    tasks: Mapping[str, int],
    config: Mapping[str, Any] | None = None,
    *,
    groupingKey: Mapping[str, GroupingKey] | None = None,
    progress: Progress | None = None,
    spark: SparkSession | None = None,
) -> Rescaling:
    """Give stateful bolts another number of tasks; their topology must not run.

    Afterwards submit it with this parallelism. ``submit(..., rescale=True)`` does both.

    Parameters
    ----------
    checkpointLocation : str or path
        As given to ``submit``.
    tasks : Mapping
        Bolt to the number of tasks that it shall have.
    config : Mapping, optional
        Settings as given to ``submit``: needed only where a secret is among the provider's options.
    groupingKey : Mapping, optional
        Bolt to a function that is given a key of its state (of what is kept under a name: name and key) and returns
        the field, or the tuple of fields, that its grouping hashes. Not needed where a key is that field or these
        fields, or a tuple that begins with them, and the bolt has more than one task and more than a few keys.
    progress : callable (done, total), optional
        Is told the bytes that were read, written and read back, and about how many there are.
    spark : SparkSession, optional
        Its executors read and write tasks at the same time, by default this process does. Not what is in a server.

    Returns
    -------
    Rescaling
        How much was moved.

    Raises
    ------
    ConfigError
        The arguments are wrong; nothing was changed.
    CheckpointError
        There is no checkpoint, no such bolt, a transaction is under way, the bolt does not get its rows by
        ``fieldsGrouping``, or it keeps what belongs to a task and not to a key; nothing was changed.
    StateCorruptedError
        What is read is damaged, or what was read back is not what was written; the bolt is as it was.
    StateError
        A disk is full, that of the checkpoint or that of temporary files; the bolt is as it was.

    Contract
    --------
    * For every key, the fields of its grouping are shown to name the task that it lies in. One task holds all keys, so
      that nothing can be shown, and a few keys may lie so by chance: then `groupingKey` has to be given.
    * One record makes it so: after a crash each bolt has its old tasks, or all have their new ones.
    * A driver that runs on the checkpoint is fenced.
    * State in a server is written under new names there. The former tasks' is deleted by the next start's first sweep.
    * Savepoints of before stay: a checkpoint that is restored has the tasks that it had then.
    * Memory does not grow with state: it is read, sorted into temporary files, and written.
    * On executors, what a lost worker was doing is done again as often as Spark tries a task. On ``local[n]`` that is
      once: then this raises, and the bolt is as it was.

    Examples
    --------
    >>> print(rescale("checkpoints/word-count", {"count": 8}))     # doctest: +SKIP
    """
    workers = Here() if spark is None else Executors(check_session(spark, "rescale"), "statefx: rescale")
    try:
        return rescale_checkpoint(
            checkpointLocation, tasks, config, grouping_key=groupingKey, progress=progress, workers=workers
        )
    except StatefxError as error:
        raise unburied(error, "rescale ended") from error.__cause__
