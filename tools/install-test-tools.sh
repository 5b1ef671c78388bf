#!/usr/bin/env bash
# What `make test` uses besides Python packages: kcat (a stock client), and a JDK with Maven (Apache Kafka as the
# oracle). Installs them where that needs no question (root on a Debian system), else says in one line what is missing;
# the tests that need a missing tool skip with the same words.
set -u
missing=()
command -v kcat >/dev/null || missing+=(kcat)
command -v java >/dev/null || missing+=(default-jdk-headless)
command -v mvn >/dev/null || missing+=(maven)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "${missing[@]}"; } >/dev/null 2>&1 && exit 0
fi
echo "not installed: ${missing[*]} (Debian: apt-get install ${missing[*]}); the tests that need them will skip"
exit 0
