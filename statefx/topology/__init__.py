"""Topologies: built and checked on the driver, then frozen."""

from statefx.topology.builder import BoltDeclarer, TopologyBuilder
from statefx.topology.graph import Component, Edge, Grouping, Topology

__all__ = [
    "BoltDeclarer",
    "Component",
    "Edge",
    "Grouping",
    "Topology",
    "TopologyBuilder",
]
