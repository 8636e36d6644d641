"""Topologies: built and checked on the driver, then frozen."""

from statefx.topology.builder import BoltDeclarer

__all__ = ["BoltDeclarer"]
