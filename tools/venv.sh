#!/bin/sh
# Makes or refreshes the project's virtual environment: tools/venv.sh EXTRAS, e.g. tools/venv.sh rocksdb,dev
#
# The stamp holds what makes an installation stale: the interpreter and pyproject.toml. When it matches, nothing is
# run and no network is needed.
set -eu

if [ $# -ne 1 ]; then
    echo "usage: tools/venv.sh EXTRAS, as in tools/venv.sh rocksdb,dev; the extras are those of pyproject.toml" >&2
    exit 2
fi
extras=$1
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
stamp=$venv/installed-$(printf '%s' "$extras" | tr ',' '-')

fits() { # fits INTERPRETER BELOW: is it Python 3.11 or later, before 3.BELOW, and able to make environments?
    "$1" -c "import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, $2))" 2>/dev/null
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        if fits "$PYTHON" 999; then command -v "$PYTHON"; return 0; fi
        echo "PYTHON=$PYTHON is not Python 3.11 or later with its venv module." >&2
        return 1
    fi
    # The newest releases come last: packages with compiled parts may not be out for them.
    for name in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if fits "$name" 15; then command -v "$name"; return 0; fi
    done
    echo "No Python 3.11 to 3.14 with its venv module was found on PATH." >&2
    if command -v apt-get >/dev/null; then
        echo "On this system:  sudo apt-get install python3 python3-venv" >&2
    elif command -v dnf >/dev/null; then
        echo "On this system:  sudo dnf install python3.12" >&2
    elif command -v apk >/dev/null; then
        echo "On this system:  sudo apk add python3" >&2
    elif command -v brew >/dev/null; then
        echo "On this system:  brew install python@3.13" >&2
    fi
    echo "Or name one:  make PYTHON=/path/to/python3.12 ..." >&2
    return 1
}

# An editable install and the scripts in bin/ hold absolute paths: a project that was moved or copied starts afresh.
usable() {
    [ "$(cat "$venv/root" 2>/dev/null)" = "$root" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1 &&
        fits "$venv/bin/python" 999
}

state() {
    "$venv/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null || echo "no interpreter"
    cat "$root/pyproject.toml"
}

if [ -f "$stamp" ] && [ "$(cat "$venv/root")" = "$root" ] && [ "$(state)" = "$(cat "$stamp")" ]; then
    exit 0
fi

if ! usable; then
    python=$(find_python)
    echo "Making .venv with $python ($("$python" -V))"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    echo "$root" >"$venv/root"
    echo "The first time, pip fetches Spark: some hundred megabytes."
fi

echo "Installing statefx[$extras] into .venv"
rm -f "$stamp"
pip_install() {
    # PIP_USER: a pip.conf that says `user = true` would make pip refuse to install into an environment.
    PIP_USER=0 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}
# What builds packages is kept in .venv: when all packages are there already, pip then needs no network at all.
# setuptools is for pyspark, which comes as source: before 70.1 (Python 3.11 brings 65) it can make no wheel by itself,
# and from Python 3.12 on a new environment has none.
builders='import hatchling, editables, setuptools.command.bdist_wheel'
if ! { { "$venv/bin/python" -c "$builders" 2>/dev/null || pip_install hatchling editables 'setuptools>=70.1'; } &&
    pip_install --no-build-isolation --editable "$root[$extras]"; }; then
    echo "pip could not install statefx[$extras] into .venv; its message is above." >&2
    exit 1
fi
state >"$stamp.part"
mv "$stamp.part" "$stamp"
