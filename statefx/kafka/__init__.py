"""Kafka by librdkafka's client, for sinks and spouts alike.

::

    clients    makes clients, and says why their calls fail
    settings   what is refused of a user's settings before anything connects
    reaching   what stands in the way of a cluster
    calls      calls that may never return, within bounds
    words      what errors of the client mean
"""
