"""Providers are found by name or reference; what is wrong with one is said with the remedy."""

import pickle
import sys
import textwrap

import pytest

from statefx.errors import ConfigError, ProviderError
from statefx.state.registry import load_provider, resolve
from statefx_memory import MemoryStateProvider


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed things: write modules and distributions into it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    resolve.cache_clear()
    yield Site(tmp_path)
    resolve.cache_clear()
    for name in set(sys.modules) - before:
        del sys.modules[name]


class Site:
    def __init__(self, folder):
        self.folder = folder

    def module(self, name, source):
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source))

    def distribution(self, name, providers, extras=()):
        info = self.folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Provides-Extra: {x}" for x in extras)]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        entries = "\n".join(f"{key} = {value}" for key, value in providers.items())
        (info / "entry_points.txt").write_text(f"[statefx.state_providers]\n{entries}\n")


PROVIDER = """
    from statefx_memory import MemoryStateProvider

    class TeaProvider(MemoryStateProvider):
        pass
"""


def test_a_registered_name_resolves_to_a_reference_that_loads_the_same_provider():
    assert resolve("memory") == "statefx_memory:MemoryStateProvider"
    assert resolve("rocksdb") == "statefx_rocksdb:RocksDbStateProvider"
    for name in ("memory", resolve("memory")):
        provider = load_provider(name, {})
        assert type(provider) is MemoryStateProvider
        assert type(pickle.loads(pickle.dumps(provider))) is MemoryStateProvider


def test_a_reference_needs_no_registration(site):
    site.module("tea", PROVIDER)
    assert resolve("tea:TeaProvider") == "tea:TeaProvider"
    assert type(load_provider("tea:TeaProvider", {})).__name__ == "TeaProvider"


def test_another_distribution_registers_its_own(site):
    site.module("tea", PROVIDER)
    site.distribution("statefx-tea", {"tea": "tea:TeaProvider"})
    assert resolve("tea") == "tea:TeaProvider"
    assert type(load_provider("tea", {})).__name__ == "TeaProvider"


def test_resolving_imports_nothing(site):
    site.module("tea", "raise AssertionError('imported')")
    site.distribution("statefx-tea", {"tea": "tea:TeaProvider"})
    assert resolve("tea") == "tea:TeaProvider"


def test_an_unknown_name_lists_the_known_and_the_nearest():
    with pytest.raises(ProviderError, match=r"'rockdb'; did you mean 'rocksdb'\?") as caught:
        load_provider("rockdb", {})
    assert {"memory", "rocksdb"} <= set(caught.value.known)
    assert f"registered: {', '.join(caught.value.known)};" in str(caught.value)
    assert isinstance(caught.value, ConfigError)


@pytest.mark.slow
def test_a_name_claimed_by_two_distributions_names_both(site):
    site.distribution("statefx-tea", {"tea": "tea:TeaProvider"})
    site.distribution("other-tea", {"tea": "other:TeaProvider"})
    with pytest.raises(ProviderError, match="by its reference, other:TeaProvider or tea:TeaProvider"):
        load_provider("tea", {})


def test_a_distribution_that_is_found_twice_claims_a_name_once(site, tmp_path, monkeypatch):
    site.distribution("statefx-tea", {"tea": "tea:TeaProvider"})
    again = tmp_path / "again"
    again.mkdir()
    Site(again).distribution("statefx-tea", {"tea": "tea:TeaProvider"})
    monkeypatch.syspath_prepend(str(again))
    assert resolve("tea") == "tea:TeaProvider"


AT_IMPORT = "import leaves_of_assam\n" + textwrap.dedent(PROVIDER)
WHEN_BUILT = textwrap.dedent(PROVIDER).replace("pass", "def __init__(self, options):\n        import leaves_of_assam")


@pytest.mark.parametrize("source", [AT_IMPORT, WHEN_BUILT], ids=["at import", "when built"])
@pytest.mark.parametrize("name", ["tea", "tea:TeaProvider"])
def test_a_missing_dependency_names_the_extra_to_install(site, source, name):
    site.module("tea", source)
    site.distribution("statefx-tea", {"tea": "tea:TeaProvider"}, extras=["tea", "milk"])
    with pytest.raises(ProviderError, match=r"pip install statefx-tea\[tea\]") as caught:
        load_provider(name, {})
    assert caught.value.missing == "leaves_of_assam"


def test_a_missing_dependency_without_an_extra_names_what_is_missing(site):
    site.module("tea", AT_IMPORT)
    with pytest.raises(ProviderError, match="install what provides 'leaves_of_assam'"):
        load_provider("tea:TeaProvider", {})


def test_rocksdb_without_its_bindings_names_our_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("statefx_rocksdb")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ProviderError, match=r"pip install statefx\[rocksdb\]"):
        load_provider("rocksdb", {})


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module:Tea", "no_such_module"),
        ("tea:Milk", "module tea has no Milk"),
        ("tea:", "write 'module:Class'"),
        (":Tea", "write 'module:Class'"),
        ("__main__:Tea", "in the script that is run, which workers don't import: move the class to a module"),
        ("tea:VALUE", "not a subclass of statefx.state.StateProvider"),
        ("tea:Other", "not a subclass of statefx.state.StateProvider"),
        ("tea:Half", "does not define fence, newState, location"),
    ],
)
def test_what_is_no_provider_is_named(site, reference, message):
    site.module(
        "tea",
        """
        from statefx.state import StateProvider

        VALUE = 1

        class Other:
            pass

        class Half(StateProvider):
            pass
        """,
    )
    with pytest.raises(ProviderError, match=message) as caught:
        load_provider(reference, {})
    assert caught.value.reference == reference


def test_a_refused_option_keeps_its_own_error():
    with pytest.raises(ConfigError, match="takes no options"):
        load_provider("memory", {"colour": "green"})
