"""Topics of Kafka as the target of a sink and as the input of transactions, by librdkafka's client.

::

    sink      sink         its arguments; tasks stage messages, and those that the topic would refuse are refused
              topic        driver: publishes messages and marker in one transaction of Kafka; what the topic allows
    spout     spout        the hooks and their arguments
              planning     driver: which partitions there are, what a transaction reads of each, what is lost of it
              reading      tasks: the records of a range of offsets, and no others
              rows         tasks: records as Arrow columns, and what values mean
    both      clients      confluent-kafka itself, its settings and errors, and calls that may never return
"""

from typing import TYPE_CHECKING

from statefx.connectors.kafka.sink import KafkaSink
from statefx.connectors.kafka.spout import KafkaSpout, OpaqueKafkaSpout
from statefx.elsewhere import lookup

__all__ = ["KafkaSink", "KafkaSpout", "OpaqueKafkaSpout"]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
