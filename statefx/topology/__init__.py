"""Topologies: built and checked on the driver, then frozen."""

from typing import TYPE_CHECKING

from statefx.elsewhere import lookup
from statefx.topology.builder import BoltDeclarer
from statefx.topology.graph import Component, Edge

__all__ = ["BoltDeclarer", "Component", "Edge"]

if not TYPE_CHECKING:
    __getattr__ = lookup(__name__)
