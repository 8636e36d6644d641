"""Topologies: built and checked on the driver, then frozen."""

from statefx.topology.builder import BoltDeclarer, TopologyBuilder
from statefx.topology.graph import Component, Edge, Grouping, Topology
from statefx.topology.hashing import batch_hashes, partial_key_chooser, row_hasher

__all__ = [
    "BoltDeclarer",
    "Component",
    "Edge",
    "Grouping",
    "Topology",
    "TopologyBuilder",
    "batch_hashes",
    "partial_key_chooser",
    "row_hasher",
]
