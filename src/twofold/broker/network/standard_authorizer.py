"""The authorizer of Apache Kafka's clusters: what the access control entries of the metadata allow.

1. A super user may do everything.
2. An entry counts where its pattern fits the resource (its literal name, a prefix of it, or the literal `*`), its
   principal is the client's or `User:*`, and its host is the client's or `*`.
3. A DENY of the operation, or of ALL, decides. Without one an ALLOW decides: of the operation, of ALL, or of an
   operation that implies it. READ, WRITE, DELETE and ALTER imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS. A
   DENY implies nothing.
4. Where no entry of any principal fits the resource, `allow.everyone.if.no.acl.found` decides. One entry for another
   principal closes the resource to all others.
5. A decision is kept until an entry changes. How many are kept has a bound.
6. What is refused is told to the audit, unless the caller only filters a list or makes a mask.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.controller.security.acls import AclPattern, AclSet, AclSubject
from twofold.controller.security.records import AccessControlEntry
from twofold.security.acl_codes import ANY_HOST, ANY_NAME, ANY_PRINCIPAL, PatternType, Permission
from twofold.security.addresses import java_address

MOST_DECISIONS = 20_000
# Kafka asks about a resource of this name whether a principal may do everything anyway.
NO_RESOURCE = "hardcode"

_IMPLIED_BY: dict[Operation, frozenset[int]] = {
    operation: frozenset({operation, Operation.ALL})
    | (
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
        if operation is Operation.DESCRIBE
        else {Operation.ALTER_CONFIGS}
        if operation is Operation.DESCRIBE_CONFIGS
        else set()
    )
    for operation in Operation
}

Audit: TypeAlias = Callable[[RequestContext, Operation, AclResourceType, str], None]


def decide(
    acls: AclSet,
    principal: str,
    host: str,
    operation: Operation,
    resource_type: AclResourceType,
    name: str,
    *,
    without_entries: bool,
) -> bool:
    """Rules 2 to 4; `without_entries` is what holds where no entry fits the resource."""
    allowing = _IMPLIED_BY[operation]
    allowed = found = False
    for pattern in acls.patterns_of(resource_type, name):
        if pattern not in acls.patterns:
            continue
        found = True
        for subject in (principal, ANY_PRINCIPAL):
            for entry in acls.by_subject.get(AclSubject(pattern, subject), ()):
                if not is_for(entry, host):
                    continue
                if entry.permission_type == Permission.DENY:
                    if entry.operation in (operation, Operation.ALL):
                        return False
                elif entry.permission_type == Permission.ALLOW and entry.operation in allowing:
                    allowed = True
    return allowed or (without_entries and not found)


def is_for(entry: AccessControlEntry, host: str) -> bool:
    return entry.host == ANY_HOST or entry.host == host or java_address(entry.host) == host


def decide_any(acls: AclSet, principal: str, host: str, operation: Operation, resource_type: AclResourceType) -> bool:
    """Whether an ALLOW of the operation or of ALL is left that no DENY takes away."""
    mine = [
        entry
        for subject in dict.fromkeys((principal, ANY_PRINCIPAL))
        for entry in acls.by_principal.get((resource_type, subject), {}).values()
        if entry.operation in (operation, Operation.ALL) and is_for(entry, host)
    ]
    denied = _patterns(entry for entry in mine if entry.permission_type == Permission.DENY)
    allowed = _patterns(entry for entry in mine if entry.permission_type == Permission.ALLOW)
    everything = AclPattern(resource_type, PatternType.LITERAL, ANY_NAME)
    if everything in denied:
        return False
    return everything in allowed or any(not _is_taken_away(pattern, denied) for pattern in allowed)


def _patterns(entries: Iterable[AccessControlEntry]) -> set[AclPattern]:
    return {AclPattern(entry.resource_type, entry.pattern_type, entry.resource_name) for entry in entries}


def _is_taken_away(pattern: AclPattern, denied: set[AclPattern]) -> bool:
    """A literal by the same literal, both kinds by a prefix. A literal DENY does not hurt a prefix."""
    if pattern.pattern_type == PatternType.LITERAL and pattern in denied:
        return True
    prefixed = pattern._replace(pattern_type=PatternType.PREFIXED)
    return any(prefixed._replace(name=pattern.name[:length]) in denied for length in range(1, len(pattern.name) + 1))


class StandardAuthorizer:
    """Asks the entries of the newest image, and keeps its decisions."""

    __slots__ = ("_acls", "_any", "_audit", "_decided", "_seen", "_super_users", "_without_entries")

    def __init__(
        self, acls: Callable[[], AclSet], *, super_users: frozenset[str], without_entries: bool, audit: Audit
    ) -> None:
        self._acls = acls
        self._super_users = super_users
        self._without_entries = without_entries
        self._audit = audit
        self._seen = acls()
        self._decided: dict[tuple[str, str, int, int, str], bool] = {}
        self._any: dict[tuple[str, str, int, int], bool] = {}

    def authorize(
        self,
        context: RequestContext,
        operation: Operation,
        resource_type: AclResourceType,
        resource_name: str,
        *,
        quiet: bool = False,
    ) -> bool:
        peer = context.peer
        key = peer.principal, peer.client_host, operation, resource_type, resource_name
        acls = self._acls()
        allowed = self._decided.get(key) if acls is self._seen else None
        if allowed is None:
            allowed = self._decide(acls, *key)
        if not allowed and not quiet:
            self._audit(context, operation, resource_type, resource_name)
        return allowed

    def _decide(
        self, acls: AclSet, principal: str, host: str, operation: Operation, resource_type: AclResourceType, name: str
    ) -> bool:
        self._look_at(acls)
        allowed = principal in self._super_users or decide(
            acls, principal, host, operation, resource_type, name, without_entries=self._without_entries
        )
        if len(self._decided) >= MOST_DECISIONS:
            self._decided.clear()
        self._decided[principal, host, operation, resource_type, name] = allowed
        return allowed

    def authorize_any(self, context: RequestContext, operation: Operation, resource_type: AclResourceType) -> bool:
        principal, host = context.principal, context.client_host
        self._look_at(self._acls())
        key = principal, host, operation, resource_type
        allowed = self._any.get(key)
        if allowed is None:
            allowed = self.authorize(context, operation, resource_type, NO_RESOURCE, quiet=True) or decide_any(
                self._seen, principal, host, operation, resource_type
            )
            if len(self._any) >= MOST_DECISIONS:
                self._any.clear()
            self._any[key] = allowed
        return allowed

    def _look_at(self, acls: AclSet) -> None:
        if acls is not self._seen:
            self._decided.clear()
            self._any.clear()
            self._seen = acls
