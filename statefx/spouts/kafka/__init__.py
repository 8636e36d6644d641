"""Topics of Kafka as the input of transactions.

::

    driver    ranges      what a transaction reads of each partition
              planning    which partitions there are, how far each can be read, and how much of that is for whom
              open_transactions    what stands still, and why
    tasks     reading     the records of a range of offsets, and no others
              rows        records as Arrow columns; values, avro     what values mean
    both      losses      what is gone before it was read, and whether the query ends with that
              settings    what clients are set to, and which of it is not a user's (`statefx.kafka` makes them)
"""

from statefx.spouts.kafka.spout import KafkaSpout

__all__ = ["KafkaSpout"]
