"""Types of a contract, in Spark's spelling, as the Delta protocol's schema JSON has them; the way back is in `log`."""

from __future__ import annotations


def delta_type(spark_type: str) -> object:
    """A type of a contract in the Delta protocol's schema JSON."""
    if spark_type.startswith("struct<"):
        inner = [field.split(":", 1) for field in _fields(spark_type[7:-1])]
        made = [{"name": n, "type": delta_type(t), "nullable": True, "metadata": {}} for n, t in inner]
        return {"type": "struct", "fields": made}
    if spark_type.startswith("map<"):
        key, value = _fields(spark_type[4:-1])
        return {"type": "map", "keyType": delta_type(key), "valueType": delta_type(value), "valueContainsNull": True}
    if spark_type.startswith("array<"):
        return {"type": "array", "elementType": delta_type(spark_type[6:-1]), "containsNull": True}
    return {"int": "integer", "bigint": "long"}.get(spark_type, spark_type)


def _fields(inside: str) -> list[str]:
    """The parts of a type between its commas, those of types within it left whole.

    >>> _fields("type:string,attributes:map<string,string>")
    ['type:string', 'attributes:map<string,string>']
    """
    parts, depth = [""], 0
    for character in inside:
        depth += (character == "<") - (character == ">")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
