"""The names of keys on the server: all of one namespace share a hash tag, and so a node of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from statefx.state.contract.store import Namespace


@dataclass(frozen=True, slots=True)
class Names:
    """The keys of one namespace; `tag` is ``lineage:component:task``, percent-encoded, so no name runs into another."""

    prefix: str
    tag: str

    @classmethod
    def of(cls, prefix: str, namespace: Namespace) -> Self:
        """Return the keys of `namespace`."""
        return cls(prefix, f"{quote(namespace.lineage, '')}:{quote(namespace.component, '')}:{namespace.task}")

    def are_of(self, lineage: str) -> bool:
        """Tell whether they can be names of a task of `lineage`."""
        of, *task = self.tag.split(":")
        return of == quote(lineage, "") and len(task) == 2 and task[1].isdecimal()

    def _key(self, last: str) -> str:
        return f"{self.prefix}:{{{self.tag}}}:{last}"

    @property
    def meta(self) -> str:
        """Hash: the version that is committed, and the commit that is under way."""
        return self._key("meta")

    @property
    def data(self) -> str:
        """Hash: committed keys and values."""
        return self._key("data")

    @property
    def order(self) -> str:
        """Sorted set: the committed keys, in the order of their bytes."""
        return self._key("order")

    @property
    def tokens(self) -> str:
        """Hash: every prepared token, and what it stands for."""
        return self._key("tokens")

    def prepared(self, token: str) -> str:
        """Hash: the changes that `token` names, in chunks."""
        return self._key(f"prepared:{token}")

    def all(self, token: str) -> list[str]:
        """Return the keys that scripts take, in their order."""
        return [self.meta, self.data, self.order, self.tokens, self.prepared(token)]


def lineage_keys(prefix: str, lineage: str) -> list[str]:
    """Return the keys of a lineage: a hash with its generation, and the set of its namespaces' tags."""
    tag = f"{prefix}:{{{quote(lineage, '')}}}"
    return [f"{tag}:lineage", f"{tag}:namespaces"]
