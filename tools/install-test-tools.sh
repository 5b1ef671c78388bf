#!/usr/bin/env bash
# What `make test` uses besides Python packages: kcat (a stock client), a JDK with Maven (Apache Kafka as the oracle),
# Prometheus (it judges deploy/), and PostgreSQL and MariaDB (dual writes); `make demo` asks for java alone. Installs them
# where that needs no question (root on a Debian system), else says in one line what is missing; the tests that need a
# missing tool skip with the same words.
set -u
cd "$(dirname "$0")/.." || exit 1
package_of() { case $1 in java) echo default-jdk-headless ;; mvn) echo maven ;; promtool) echo prometheus ;; postgres) echo postgresql ;; mariadbd) echo mariadb-server-core ;; *) echo "$1" ;; esac; }
is_there() {
    case $1 in
    promtool) command -v promtool || ls .cache/prometheus/usr/bin/promtool ;;
    postgres) ls /usr/lib/postgresql/*/bin/initdb || ls .cache/postgresql/usr/lib/postgresql/*/bin/initdb ;;
    mariadbd) ls /usr/sbin/mariadbd || ls .cache/mariadb-server-core/usr/sbin/mariadbd ;;
    *) command -v "$1" ;;
    esac >/dev/null 2>&1
}

# Unpacked into .cache and not installed: these packages would start a server at every boot.
unpack() {
    local folder name=$1
    folder=$(mktemp -d) || return 1
    (cd "$folder" && apt-get -qq download "$@" && for file in *.deb; do dpkg -x "$file" unpacked || exit 1; done) &&
        mkdir -p .cache && rm -rf ".cache/$name" && mv "$folder/unpacked" ".cache/$name"
    local outcome=$?
    rm -rf "$folder"
    return $outcome
}

# What the system lacks of a package's dependencies, except the compiler of PostgreSQL's queries: it is large, and no test
# needs it. "postgresql" alone is empty: it names the package of a version.
lacking() {
    apt-get -qq --simulate --no-install-recommends install "$1" | sed -n 's/^Inst \([^ ]*\) .*/\1/p' | grep -v -e '^libllvm' -e "^$1\$"
    apt-cache depends "$1" | sed -n 's/^ *Depends: \(postgresql-[0-9]*\)$/\1/p'
}

[ $# -gt 0 ] || set -- kcat java mvn promtool postgres mariadbd
missing=()
for tool in "$@"; do is_there "$tool" || missing+=("$(package_of "$tool")"); done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]}"
    apt-get -qq update >/dev/null 2>&1
    left=()
    for package in "${missing[@]}"; do
        case $package in
        prometheus) unpack "$package" >/dev/null 2>&1 || left+=("$package") ;;
        # shellcheck disable=SC2046 # one word per package
        postgresql | mariadb-server-core) unpack "$package" $(lacking "$package" | sort -u) >/dev/null 2>&1 || left+=("$package") ;;
        *) DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "$package" >/dev/null 2>&1 || left+=("$package") ;;
        esac
    done
    [ ${#left[@]} -eq 0 ] && exit 0
    missing=("${left[@]}")
fi
echo "not installed: ${missing[*]} (Debian: apt-get install ${missing[*]}); tests that need them will skip"
exit 0
