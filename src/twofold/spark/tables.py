"""Tables of Spark's catalog: `CREATE TABLE t USING twofold OPTIONS (...)`.

Spark tells the options of a table to a Python data source when the table is made, and not when it is read or written.
What Spark keeps, and tells every time, is the schema that the source returned: so the options are put down there, in
the metadata of the first column.
"""

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from twofold.spark.errors import OptionError

OF_TABLE = "twofold.options"
_PROVIDER = "provider"
"""Among the options only when a table is made."""
_OPTION = "option."
_SECRETS = ("password", "jaas.config", "ssl.keystore.key", "secret")


def options_of_new_table(options: Mapping[str, str]) -> dict[str, str] | None:
    """None where no table is made. Beside the options there are properties of the table, which may have any name."""
    given = {name.lower(): value for name, value in options.items()}
    if _PROVIDER not in given:
        return None
    if "location" in given:
        raise OptionError("a table of topics has no LOCATION: leave it out, and name topics with subscribe or topic")
    chosen = {name.removeprefix(_OPTION): value for name, value in given.items() if name.startswith(_OPTION)}
    for name in chosen:
        if any(part in name for part in _SECRETS):
            raise OptionError(
                f"{name} would stand in the catalog for its readers to see: make a temporary view instead (CREATE "
                "TEMPORARY VIEW ... USING twofold OPTIONS ...), which ends with the session"
            )
    return chosen


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    first, *others = schema.fields
    metadata = {OF_TABLE: json.dumps(options)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of(schema: StructType, options: Mapping[str, str]) -> dict[str, str]:
    """Those of the table, if it is one, and those that came with the query."""
    given = {name.lower(): value for name, value in options.items()}
    if "kafka.bootstrap.servers" in given:
        return given  # columns that come from a table, and go elsewhere
    found = [field.metadata[OF_TABLE] for field in schema.fields if OF_TABLE in field.metadata]
    return (json.loads(found[0]) if found else {}) | given
