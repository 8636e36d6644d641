"""Topics of Kafka as the target of a sink and as the input of transactions, by librdkafka's client.

::

    sink      sink               its arguments
              messages           tasks: messages of rows, staged; those that the topic would refuse are refused
              topic              driver: publishes messages and marker in one transaction of Kafka
              limits             what the topic and its brokers allow
              publisher          who publishes where, and errors that name both and the remedy
    spout     spout              the hooks
              opaque             the hooks of one that leaves out partitions without a leader
              arguments          what the spout's arguments may be
              ranges             driver: what a transaction reads of each partition
              planning           driver: which partitions there are, how far each can be read, and the share of each
              group              driver: the consumer group that is told what is committed
              reading            tasks: the records of a range of offsets, and no others
              rows               tasks: records as Arrow columns
              values, avro       tasks: what values mean
              losses             what is gone before it was read, and whether the query ends with that
    client    clients            makes clients, and says why their calls fail
              settings           what is refused of a user's settings before anything connects
              diagnosis          why no broker can be reached, and the remedy
              calls              confluent-kafka itself, its errors, and calls that may never return
"""

from statefx.connectors.kafka.opaque import OpaqueKafkaSpout
from statefx.connectors.kafka.sink import KafkaSink
from statefx.connectors.kafka.spout import KafkaSpout

__all__ = ["KafkaSink", "KafkaSpout", "OpaqueKafkaSpout"]
