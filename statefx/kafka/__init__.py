"""Kafka by librdkafka's client, for sinks and spouts alike.

::

    clients    which settings are whose, and the clients that are made with them
    calls      calls that may never return, within bounds
    words      what errors of the client mean, and what to do
"""
