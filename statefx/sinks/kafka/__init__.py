"""A topic of Kafka as the target of a sink.

::

    tasks     sink        makes messages of rows, stages them, and refuses those that the topic would refuse
    driver    topic       publishes the messages and the marker of a transaction in one transaction of Kafka
    both      limits      what the topic and its brokers allow
"""

from statefx.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
