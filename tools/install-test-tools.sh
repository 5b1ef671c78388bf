#!/usr/bin/env bash
# What `make test` uses besides Python packages: kcat (a stock client), a JDK with Maven (Apache Kafka as the oracle),
# and Prometheus (it judges deploy/); `make demo` asks for java alone. Installs them where that needs no question (root
# on a Debian system), else says in one line what is missing; the tests that need a missing tool skip with the same words.
set -u
cd "$(dirname "$0")/.." || exit 1
package_of() { case $1 in java) echo default-jdk-headless ;; mvn) echo maven ;; promtool) echo prometheus ;; *) echo "$1" ;; esac; }
is_there() { command -v "$1" >/dev/null || [ -x ".cache/prometheus/usr/bin/$1" ]; }

# Unpacked and not installed: the package would start a server at every boot.
unpack_prometheus() {
    local folder
    folder=$(mktemp -d) || return 1
    (cd "$folder" && apt-get -qq download prometheus && dpkg -x prometheus_*.deb unpacked) &&
        mkdir -p .cache && rm -rf .cache/prometheus && mv "$folder/unpacked" .cache/prometheus
    local outcome=$?
    rm -rf "$folder"
    return $outcome
}

[ $# -gt 0 ] || set -- kcat java mvn promtool
missing=()
for tool in "$@"; do is_there "$tool" || missing+=("$(package_of "$tool")"); done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    apt-get -qq update >/dev/null 2>&1
    left=()
    for package in "${missing[@]}"; do
        if [ "$package" = prometheus ]; then
            unpack_prometheus >/dev/null 2>&1 || left+=("$package")
        else
            DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "$package" >/dev/null 2>&1 || left+=("$package")
        fi
    done
    [ ${#left[@]} -eq 0 ] && exit 0
    missing=("${left[@]}")
fi
echo "not installed: ${missing[*]} (Debian: apt-get install ${missing[*]}); tests that need them will skip"
exit 0
