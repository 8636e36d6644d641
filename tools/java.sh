#!/bin/sh
# Prints the home of a Java 17 or later, installing one with the system's package manager if there is none.
# All but the home goes to standard error.
set -eu

home_of() { # home_of JAVA: prints its home if it is 17 or later
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    major=$(printf '%s\n' "$settings" | sed -n 's/^ *java\.specification\.version = //p')
    case $major in '' | *[!0-9]*) return 1 ;; esac # Java 8 calls itself 1.8
    [ "$major" -ge 17 ] || return 1
    printf '%s\n' "$settings" | sed -n 's/^ *java\.home = //p'
}

find_java() {
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" \
        /usr/lib/jvm/*/bin/java /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java \
        /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
        if [ -n "$java" ] && [ -x "$java" ] && home_of "$java"; then return 0; fi
    done
    return 1
}

if find_java; then exit 0; fi

# The package's name differs between releases of a system: the first one that is known there is taken.
if command -v apt-get >/dev/null; then
    as_root=yes refresh="apt-get update" install="apt-get install --yes --no-install-recommends"
    # `apt-cache show` also knows names that other packages only mention (openjdk-17 on Debian 13): those have no version.
    known() { apt-cache show "$1" 2>/dev/null | grep -q '^Version:'; }
    packages="openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless"
elif command -v dnf >/dev/null; then
    as_root=yes refresh=true install="dnf install --assumeyes"
    known() { dnf --quiet info "$1" >/dev/null 2>&1; }
    packages="java-17-openjdk-headless java-21-openjdk-headless java-latest-openjdk-headless"
elif command -v apk >/dev/null; then
    # bash is for Spark's own start scripts.
    as_root=yes refresh="apk update" install="apk add bash"
    known() { apk search --exact "$1" | grep -q .; }
    packages="openjdk17-jre-headless openjdk21-jre-headless"
elif command -v brew >/dev/null; then
    as_root=no refresh=true install="brew install"
    known() { brew info "$1" >/dev/null 2>&1; }
    packages="openjdk@17 openjdk@21"
else
    echo "Spark needs Java 17 or later. None was found, and no package manager that is known here" >&2
    echo "(apt-get, dnf, apk, brew). Install one, then set JAVA_HOME to its folder and try again." >&2
    exit 1
fi

wanted() { # the first package that is known; where none is, as before lists are fetched, the one that should be
    for name in $packages; do
        if known "$name"; then echo "$name"; return 0; fi
    done
    echo "${packages%% *}"
}

if [ "$as_root" = no ] || [ "$(id -u)" = 0 ]; then
    sudo=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo="sudo -n"
else
    echo "Spark needs Java 17 or later, none was found, and installing it needs root. Please run:" >&2
    echo "    sudo sh -c '$refresh && $install $(wanted)'" >&2
    exit 1
fi

echo "No Java 17 or later was found: installing one ($install)" >&2
DEBIAN_FRONTEND=noninteractive
export DEBIAN_FRONTEND
# A failed refresh is no reason to stop: the lists at hand may do.
$sudo $refresh >&2 || true
package=$(wanted)
if $sudo $install "$package" >&2 && find_java; then exit 0; fi
echo "Installing Java failed. Please run this, or set JAVA_HOME to a Java 17 or later:" >&2
echo "    ${sudo:+sudo }$install $package" >&2
exit 1
