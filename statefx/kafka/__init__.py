"""Kafka by librdkafka's client, for sinks and spouts alike.

::

    clients      makes clients, and says why their calls fail
    settings     what is refused of a user's settings before anything connects
    diagnosis    why no broker can be reached, and what to mend
    calls        calls that may never return, within bounds
    library      confluent-kafka itself, and the codes of its errors
"""
