"""A script whose bolts log and print: ``python -m tests.spark.logging_bolts FOLDER [quiet]``.

With ``quiet`` the program sets up no logging. The driver's records are lines of JSON on stdout.
"""

import logging
import os
import sys
import threading
import time

import statefx
from statefx import TopologyBuilder, submit
from statefx.logs import JsonFormatter
from statefx.runtime.worker_log import PARTIAL_SECS
from tests.bolts import WithState

PRINTED = 100_000


class Logs(WithState):
    def execute(self, tup, collector):
        match tup.word:
            case "log":
                logging.getLogger("shop.bolts").info("counted %s", tup.word, extra={"order": {5}})
                logging.getLogger("shop.quiet").info("is not to be heard")
            case "raise":
                try:
                    raise ValueError("no such word")
                except ValueError:
                    logging.getLogger("shop.bolts").exception("failed")
            case "print":
                print("printed", tup.word)
                print("printed to stderr", file=sys.stderr)
            case "bytes":
                sys.stdout.buffer.write(b"no text: \xff\xfe\n")
            case "thread":
                thread = threading.Thread(target=print, args=("printed in a thread",))
                thread.start()
                thread.join()
            case "partial":
                print("without an end", end="", flush=True)
                time.sleep(2 * PARTIAL_SECS)  # noqa: TID251 - as long as it is held back
            case "descriptor":
                os.write(2, b"by the descriptor\n")
            case "many":
                for number in range(PRINTED):
                    print("many", number)
        self.state.put(tup.word, 1)


WORDS = ["log", "raise", "print", "bytes", "thread", "partial", "descriptor", "many"]


def main(folder, quiet=""):
    if not quiet:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(JsonFormatter())
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        logging.getLogger("shop.quiet").setLevel(logging.WARNING)
    spark = statefx.session("logging", config={"spark.log.level": "ERROR"})
    builder = TopologyBuilder("logging")
    builder.setStream("words", spark.createDataFrame([(word,) for word in WORDS], "word string"))
    builder.setBolt("logs", Logs()).globalGrouping("words")
    submit(builder.createTopology(), spark, folder).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
