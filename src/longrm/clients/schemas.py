"""Answers held to a JSON schema: an analysis first, then a verdict of a known form."""

import json
from typing import Any


def response_format(verdict: str) -> dict[str, Any]:
    """What `response_format` of a request holds: the analysis comes first, so that it can decide the verdict.

    Args:
        verdict: A regular expression of the whole verdict.
    """
    properties = {"analysis": {"type": "string"}, "verdict": {"type": "string", "pattern": f"^{verdict}$"}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "judgment", "strict": True, "schema": schema}}


def joined(text: str) -> str:
    """An answer under that schema as a free one reads: the verdict alone on the last line.

    What is no such answer stays as it is: some servers take the schema and do not keep to it.
    """
    try:
        answer = json.loads(text)
        analysis, verdict = answer["analysis"], answer["verdict"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return text
    return f"{str(analysis).strip()}\n\n{str(verdict).strip()}"
