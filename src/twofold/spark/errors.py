"""What the source and the sink raise. Spark shows the text under the name of its own exception."""


class OptionError(ValueError):
    """An option is missing, unknown or has a value that cannot be."""


class DataLoss(RuntimeError):
    """Records that the query was to read are not there any more."""
