"""Topics of Kafka as the input of transactions.

::

    driver    ranges               what a transaction reads of each partition
              planning             which partitions there are, how far each can be read, and the share of each
              group                the consumer group that is told what is committed
              open_transactions    warns of partitions that stand still behind a transaction of a producer
    tasks     reading              the records of a range of offsets, and no others
              rows                 records as Arrow columns
              values, avro         what values mean
    both      spout                the hooks
              arguments            what the spout's arguments may be
              losses               what is gone before it was read, and whether the query ends with that
              settings             what clients are set to, and what a user can't set (`statefx.kafka` makes clients)
"""

from statefx.spouts.kafka.spout import KafkaSpout

__all__ = ["KafkaSpout"]
