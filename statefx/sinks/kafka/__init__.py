"""A topic of Kafka as the target of a sink.

::

    sink         its arguments
    messages     tasks: messages of rows, staged; those that the topic would refuse are refused
    topic        driver: publishes the messages and the marker of a transaction in one transaction of Kafka
    limits       both: what the topic and its brokers allow
    publisher    who publishes where, and errors that name both and the remedy
"""

from statefx.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
