"""The administrator's calls about quotas, a part of `twofold.client.admin.admin.Admin`.

An owner is a user, a client id, both, or an address. The name None stands for the default of its type.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from twofold.client.admin.model import Results
from twofold.client.cluster.cluster import Cluster
from twofold.wire.errors import KafkaError, error_for, raise_for
from twofold.wire.messages import alter_client_quotas as altering
from twofold.wire.messages import describe_client_quotas as describing


class QuotaTarget(NamedTuple):
    """A user, a client id, both, or an address. A part that is not there is ""; None is the default of its type."""

    user: str | None = ""
    client_id: str | None = ""
    ip: str | None = ""

    def parts(self) -> dict[str, str | None]:
        named = {"user": self.user, "client-id": self.client_id, "ip": self.ip}
        return {kind: name for kind, name in named.items() if name != ""}

    def __str__(self) -> str:
        return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in self.parts().items())


ALL = QuotaTarget()


class _Match(IntEnum):
    EXACT = 0
    DEFAULT = 1


class QuotaCalls:
    _cluster: Cluster

    async def describe_quotas(
        self, target: QuotaTarget = ALL, *, strict: bool = False
    ) -> dict[QuotaTarget, dict[str, float]]:
        """The quotas whose owners have all parts of the target; with `strict`, no others."""
        deadline = self._cluster.deadline()
        components = [
            describing.ComponentData(
                entity_type=kind, match_type=_Match.DEFAULT if name is None else _Match.EXACT, match=name
            )
            for kind, name in target.parts().items()
        ]
        request = describing.DescribeClientQuotasRequest(components=components, strict=strict)

        async def attempt() -> dict[QuotaTarget, dict[str, float]]:
            response: describing.DescribeClientQuotasResponse = await self._cluster.request(
                None, request, "DescribeClientQuotas", deadline
            )
            raise_for(response.error_code, response.error_message or "DescribeClientQuotas")
            return {
                _target({one.entity_type: one.entity_name for one in row.entity}): {
                    value.key: value.value for value in row.values
                }
                for row in response.entries or ()
            }

        return await self._cluster.retry("DescribeClientQuotas", attempt, deadline)

    async def alter_quotas(
        self, changes: Mapping[QuotaTarget, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> Results[QuotaTarget, None]:
        """Set limits by Kafka's keys (`producer_byte_rate`, ...); None takes a limit away."""
        deadline = self._cluster.deadline()
        request = altering.AlterClientQuotasRequest(
            entries=[_entry(target, limits) for target, limits in changes.items()], validate_only=validate_only
        )

        async def attempt() -> Sequence[altering.EntryDataResult]:
            response: altering.AlterClientQuotasResponse = await self._cluster.request(
                None, request, "AlterClientQuotas", deadline
            )
            return response.entries

        rows = await self._cluster.retry("AlterClientQuotas", attempt, deadline)
        values: dict[QuotaTarget, None] = {}
        errors: dict[QuotaTarget, KafkaError] = {}
        for row in rows:
            target = _target({one.entity_type: one.entity_name for one in row.entity})
            if row.error_code:
                errors[target] = error_for(row.error_code)(row.error_message or str(target))
            else:
                values[target] = None
        return Results(values, errors)


def _entry(target: QuotaTarget, limits: Mapping[str, float | None]) -> altering.EntryData:
    return altering.EntryData(
        entity=[altering.EntityData(entity_type=kind, entity_name=name) for kind, name in target.parts().items()],
        ops=[altering.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in limits.items()],
    )


def _target(parts: Mapping[str, str | None]) -> QuotaTarget:
    return QuotaTarget(parts.get("user", ""), parts.get("client-id", ""), parts.get("ip", ""))
