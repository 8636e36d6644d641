#!/bin/sh
# Prints the path of a Chromium, installing one with the system's package manager if there is none and that is allowed.
# For tests of the page alone: where it fails, they are skipped. All but the path goes to standard error.
set -eu

find_chromium() {
    for name in "${CHROMIUM:-}" chromium chromium-browser google-chrome-stable google-chrome; do
        if [ -n "$name" ] && command -v "$name"; then return 0; fi
    done
    for path in "/Applications/Chromium.app/Contents/MacOS/Chromium" "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do
        if [ -x "$path" ]; then echo "$path"; return 0; fi
    done
    return 1
}

if find_chromium; then exit 0; fi

if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo="sudo -n"
    echo "No Chromium was found: installing one (apt-get install chromium)" >&2
    DEBIAN_FRONTEND=noninteractive
    export DEBIAN_FRONTEND
    # A failed refresh is no reason to stop: the lists at hand may do. Fonts, as a browser without any shows boxes.
    $sudo apt-get update >&2 || true
    $sudo apt-get -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends chromium fonts-dejavu-core >&2 || true
    if find_chromium; then exit 0; fi
fi
echo "No Chromium was found. Install one (Debian: apt-get install chromium), or set CHROMIUM to its path." >&2
exit 1
