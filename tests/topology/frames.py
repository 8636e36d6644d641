"""What a topology sees of a DataFrame, without Spark."""

from typing import Any


class Frame:
    """A DataFrame as far as a topology looks at it: schema, isStreaming and sparkSession."""

    def __init__(self, schema: Any = "value string", *, streaming: bool = True, session: object = None) -> None:
        self.schema = schema
        self.isStreaming = streaming
        self.sparkSession = session
