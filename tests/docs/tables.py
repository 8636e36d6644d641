"""What the pages show of the code: generated between ``<!-- table: name -->`` and ``<!-- end -->``.

``python tests/docs/tables.py`` writes them anew; test_tables.py compares.
"""

import inspect
import re
from pathlib import Path
from typing import get_type_hints

import msgspec

from statefx.config import reference_table
from statefx.metrics.catalog import METRICS
from statefx_rocksdb.provider import Settings

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PLACES = {
    "settings": "configuration.md",
    "rocksdb": "configuration.md",
    "metrics": "metrics.md",
}


def settings() -> str:
    return reference_table()


def rocksdb() -> str:
    """Options of the rocksdb provider, with what the docstring of `Settings` says of each."""
    lines = ["| option | default | allowed | meaning |", "|---|---|---|---|"]
    text = inspect.cleandoc(Settings.__doc__ or "") + "\n"  # Python 3.13 and later take the indentation away themselves
    kinds = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        meaning = re.search(rf"^{field.name} : \w+\n((?:    .+\n)+)", text, re.MULTILINE)
        assert meaning, f"the docstring of Settings does not tell of {field.name}"
        limits = getattr(kinds[field.name], "__metadata__", None)
        allowed = f"{limits[0].ge} to {limits[0].le}" if limits else "an absolute path"
        default = f"`{field.default}`" if field.default != "" else "the temporary folder"
        lines.append(f"| `{field.name}` | {default} | {allowed} | {' '.join(meaning[1].split())} |")
    return "\n".join(lines) + "\n"


def metrics() -> str:
    lines = ["| metric | kind | meaning |", "|---|---|---|"]
    for metric in METRICS:
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        lines.append(f"| `{metric.exposed}{labels}` | {metric.kind} | {metric.help} |")
    return "\n".join(lines) + "\n"


TABLES = {"settings": settings, "rocksdb": rocksdb, "metrics": metrics}


def marked(name: str) -> re.Pattern[str]:
    """Finds what stands between the marks of a table."""
    return re.compile(rf"<!-- table: {name} -->\n\n?(.*?)\n?<!-- end -->", re.DOTALL)


def shown(name: str) -> str:
    """What the page has."""
    found = marked(name).findall((DOCS / PLACES[name]).read_text(encoding="utf-8"))
    assert len(found) == 1, f"{PLACES[name]} has {len(found)} places for the table {name!r}"
    return found[0]


def main() -> None:
    for name, page in PLACES.items():
        path = DOCS / page
        text = f"<!-- table: {name} -->\n\n{TABLES[name]()}\n<!-- end -->"
        path.write_text(marked(name).sub(lambda _, text=text: text, path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
