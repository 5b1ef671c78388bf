#!/usr/bin/env bash
# What `make test` uses besides Python packages: kcat (a stock client), and a JDK with Maven (Apache Kafka as the
# oracle); `make demo` asks for java alone. Installs them where that needs no question (root on a Debian system), else
# says in one line what is missing; the tests that need a missing tool skip with the same words.
set -u
package_of() { case $1 in java) echo default-jdk-headless ;; mvn) echo maven ;; *) echo "$1" ;; esac; }
[ $# -gt 0 ] || set -- kcat java mvn
missing=()
for tool in "$@"; do command -v "$tool" >/dev/null || missing+=("$(package_of "$tool")"); done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "${missing[@]}"; } >/dev/null 2>&1 && exit 0
fi
echo "not installed: ${missing[*]} (Debian: apt-get install ${missing[*]}); tests that need them will skip"
exit 0
