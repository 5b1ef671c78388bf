"""DescribeClientQuotas and AlterClientQuotas: what is refused and how, what is kept, what a filter finds."""

from typing import Any

from oracle.compare import Cases, Differs, Probe, attempts

CASES = Cases("quotas")
case = CASES.case

EXACT, DEFAULT, ANY = 0, 1, 2
PRODUCE, FETCH, TIME, MUTATIONS = (
    "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
)  # fmt: skip
CONNECTIONS = "connection_creation_rate"

Owner = dict[str, str | None]


def entry(owner: Owner, **ops: float | None) -> dict[str, Any]:
    """None takes a quota away."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in owner.items()],
        "ops": [op(key, value) for key, value in ops.items()],
    }


def op(key: str, value: float | None) -> dict[str, Any]:
    return {"key": key, "value": 0.0 if value is None else value, "remove": value is None}


def rows(answer: dict[str, Any]) -> Any:
    """The answer with its rows in an order of their own: they are named by what they are about."""
    answer = dict(answer)
    for found in answer["entries"] or []:
        found["name"] = " ".join(sorted(f"{one['entity_type']}={one['entity_name']}" for one in found.pop("entity")))
        if "values" in found:
            found["values"] = sorted(found["values"], key=lambda value: str(value["key"]))
    return answer


def alter(probe: Probe, label: str, *entries: dict[str, Any], version: int = 1, validate_only: bool = False) -> Any:
    body = {"entries": list(entries), "validate_only": validate_only}
    return probe.ask(label, "AlterClientQuotas", version, body, keep=rows)


def describe(
    probe: Probe, label: str, *components: tuple[str, int, str | None], version: int = 1, strict: bool = False,
    settled: int | None = None,
) -> Any:  # fmt: skip
    body = {
        "components": [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components],
        "strict": strict,
    }
    if settled is not None:
        for _ in attempts():
            if len(probe.tell("DescribeClientQuotas", version, **body)["entries"] or ()) == settled:
                break
    return probe.ask(label, "DescribeClientQuotas", version, body, keep=rows)


def forget(probe: Probe, *owners: Owner) -> None:
    """Take back what the case has set: quotas hold for the whole server."""
    keys: dict[str, float | None] = dict.fromkeys((PRODUCE, FETCH, TIME, MUTATIONS))
    of_addresses: dict[str, float | None] = {CONNECTIONS: None}
    entries = [entry(owner, **(of_addresses if "ip" in owner else keys)) for owner in owners]
    probe.tell("AlterClientQuotas", 1, entries=entries, validate_only=False)


@case()
def a_quota_is_set_described_and_removed(probe: Probe) -> None:
    owner: Owner = {"client-id": probe.name("c")}
    for version in (0, 1):
        alter(probe, f"set v{version}", entry(owner, **{PRODUCE: 1024.0, TIME: 12.5}), version=version)
        match = ("client-id", EXACT, owner["client-id"])
        describe(probe, f"described v{version}", match, version=version, settled=1)
        alter(probe, f"removed v{version}", entry(owner, **{PRODUCE: None, TIME: None}), version=version)
        describe(probe, f"gone v{version}", match, version=version, settled=0)


@case()
def removing_what_is_not_there_is_fine(probe: Probe) -> None:
    alter(probe, "answer", entry({"user": probe.name("u")}, **{PRODUCE: None}))


@case()
def an_entry_without_operations_is_fine(probe: Probe) -> None:
    alter(probe, "answer", entry({"user": probe.name("u")}))


@case()
def no_entries_is_fine(probe: Probe) -> None:
    alter(probe, "answer")


@case()
def validate_only_changes_nothing(probe: Probe) -> None:
    owner: Owner = {"user": probe.name("u")}
    alter(probe, "valid", entry(owner, **{PRODUCE: 5.0}), validate_only=True)
    alter(probe, "not valid", entry(owner, **{PRODUCE: -5.0}), validate_only=True)
    describe(probe, "described", ("user", EXACT, owner["user"]))


BAD_VALUES: dict[str, tuple[Owner, str, float]] = {
    "unknown key": ({"user": "u"}, "bytes_per_day", 1.0),
    "zero": ({"user": "u"}, PRODUCE, 0.0),
    "negative": ({"client-id": "c"}, TIME, -1.0),
    "fraction of bytes": ({"user": "u"}, PRODUCE, 1.5),
    "fraction of fetched bytes": ({"client-id": "c"}, FETCH, 0.25),
    "too many bytes": ({"user": "u"}, PRODUCE, 1e19),
    "connections of a user": ({"user": "u"}, CONNECTIONS, 1.0),
    "bytes of an address": ({"ip": "10.0.0.1"}, PRODUCE, 1.0),
    "fraction of connections": ({"ip": "10.0.0.1"}, CONNECTIONS, 1.5),
    "too many connections": ({"ip": "10.0.0.1"}, CONNECTIONS, 2.0**31),
    "endless bytes": ({"user": "u"}, PRODUCE, float("inf")),
}


@case()
def bad_values(probe: Probe) -> None:
    for label, (owner, key, value) in BAD_VALUES.items():
        alter(probe, label, entry(owner, **{key: value}), validate_only=True)


@case()
def fractions_where_they_make_sense(probe: Probe) -> None:
    alter(probe, "time", entry({"user": "u"}, **{TIME: 0.25}), validate_only=True)
    alter(probe, "mutations", entry({"user": "u"}, **{MUTATIONS: 0.25}), validate_only=True)
    alter(probe, "almost whole", entry({"user": "u"}, **{PRODUCE: 5.0000000001}), validate_only=True)


NAN = Differs(
    "a quota of NaN would bind nothing; Apache Kafka stores it",
    {"entries[0].error_code": 42, "entries[0].error_message": "<text>"},
)


@case({"answer": NAN})
def not_a_number(probe: Probe) -> None:
    alter(probe, "answer", entry({"user": "u"}, **{TIME: float("nan")}), validate_only=True)


@case()
def bad_entities(probe: Probe) -> None:
    for label, owner in {
        "none": {},
        "unknown type": {"group": "g"},
        "unknown beside known": {"group": "g", "user": "u"},
        "empty user": {"user": ""},
        "empty client": {"client-id": ""},
        "empty address": {"ip": ""},
        "address with user": {"ip": "10.0.0.1", "user": "u"},
        "address with client": {"ip": "10.0.0.1", "client-id": "c"},
        "no address": {"ip": "999.1.2.3.4"},
    }.items():
        key = CONNECTIONS if "ip" in owner else PRODUCE
        alter(probe, label, entry(dict(owner), **{key: 1.0}), validate_only=True)


@case()
def addresses_of_both_kinds(probe: Probe) -> None:
    for address in ("10.0.0.1", "::1", None):
        alter(probe, str(address), entry({"ip": address}, **{CONNECTIONS: 1.0}), validate_only=True)


@case()
def the_same_key_twice(probe: Probe) -> None:
    twice = entry({"user": "u"}) | {"ops": [op(PRODUCE, 1.0), op(PRODUCE, 1.0)]}
    alter(probe, "answer", twice, validate_only=True)


@case()
def the_same_entity_twice(probe: Probe) -> None:
    owner: Owner = {"user": probe.name("u")}
    alter(probe, "answer", entry(owner, **{PRODUCE: 1.0}), entry(owner, **{FETCH: 1.0}))
    describe(probe, "the first one counts", ("user", EXACT, owner["user"]), settled=1)
    forget(probe, owner)


@case()
def the_same_type_twice_in_an_entity(probe: Probe) -> None:
    both = [{"entity_type": "user", "entity_name": name} for name in ("a", "b")]
    alter(probe, "answer", {"entity": both, "ops": [op(PRODUCE, 1.0)]}, validate_only=True)


@case()
def one_bad_entry_does_not_stop_the_others(probe: Probe) -> None:
    good: Owner = {"user": probe.name("good")}
    alter(probe, "answer", entry({"user": probe.name("bad")}, **{PRODUCE: 0.0}), entry(good, **{PRODUCE: 7.0}))
    describe(probe, "described", ("user", EXACT, good["user"]), settled=1)
    forget(probe, good)


@case()
def one_bad_value_spoils_its_entry(probe: Probe) -> None:
    owner: Owner = {"user": probe.name("u")}
    alter(probe, "answer", entry(owner, **{PRODUCE: 7.0, FETCH: -1.0}))
    describe(probe, "described", ("user", EXACT, owner["user"]))


@case()
def what_filters_find(probe: Probe) -> None:
    user, client = probe.name("u"), probe.name("c")
    owners: list[Owner] = [
        {"user": user}, {"user": user, "client-id": client}, {"user": user, "client-id": None}, {"client-id": client},
        {"user": None, "client-id": client}, {"ip": "10.9.8.7"},
    ]  # fmt: skip
    entries = [entry(owner, **{CONNECTIONS if "ip" in owner else TIME: 1000.0}) for owner in owners]
    probe.tell("AlterClientQuotas", 1, entries=entries, validate_only=False)
    describe(probe, "user", ("user", EXACT, user), settled=3)
    describe(probe, "user only", ("user", EXACT, user), strict=True)
    describe(probe, "user and client", ("user", EXACT, user), ("client-id", EXACT, client))
    describe(probe, "user and default client", ("user", EXACT, user), ("client-id", DEFAULT, None))
    describe(probe, "user and any client", ("user", EXACT, user), ("client-id", ANY, None))
    describe(probe, "any user and client", ("user", ANY, None), ("client-id", EXACT, client))
    describe(probe, "default user and client", ("user", DEFAULT, None), ("client-id", EXACT, client))
    describe(probe, "client only", ("client-id", EXACT, client), strict=True)
    describe(probe, "address", ("ip", EXACT, "10.9.8.7"))
    describe(probe, "default address", ("ip", DEFAULT, None))
    describe(probe, "all", settled=6)
    describe(probe, "strict without components", strict=True)
    describe(probe, "a name of nobody", ("user", EXACT, probe.name("nobody")))
    forget(probe, *owners)


@case()
def bad_filters(probe: Probe) -> None:
    filters: dict[str, list[tuple[str, int, str | None]]] = {
        "unknown type": [("group", EXACT, "g")],
        "empty type": [("", EXACT, "g")],
        "a type twice": [("user", EXACT, "a"), ("user", EXACT, "b")],
        "a type twice, once any": [("user", ANY, None), ("user", EXACT, "b")],
        "exact null": [("user", EXACT, None)],
        "default with a name": [("user", DEFAULT, "a")],
        "any with a name": [("user", ANY, "a")],
        "unknown match": [("user", 3, "a")],
        "negative match": [("user", -1, None)],
        "address with user": [("ip", ANY, None), ("user", ANY, None)],
        "address with client": [("client-id", EXACT, "c"), ("ip", EXACT, "10.0.0.1")],
    }
    for label, components in filters.items():
        describe(probe, label, *components)
