"""Finds where the functions of the product commit, by what they call."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

from engagement_platform_tests.docs.pages import PACKAGE, modules, tree

_CALLED = {
    "writing", "_alone", "_writing", "_transaction", "save_under", "write_deltalake", "convert_to_deltalake",
    "fsync", "replacing", "write_durably", "ParquetWriter", "NamedTemporaryFile",
}  # fmt: skip
"""Functions, of whatever module, that commit."""
OUTSIDE = {
    "change_message_visibility": "ChangeMessageVisibility",
    "change_message_visibility_batch": "ChangeMessageVisibilityBatch",
    "complete_multipart_upload": "CompleteMultipartUpload",
    "copy_object": "CopyObject",
    "create_queue": "CreateQueue",
    "delete_message": "DeleteMessage",
    "delete_message_batch": "DeleteMessageBatch",
    "delete_object": "DeleteObject",
    "delete_objects": "DeleteObjects",
    "publish": "Publish",
    "publish_batch": "PublishBatch",
    "purge_queue": "PurgeQueue",
    "put_object": "PutObject",
    "put_object_tagging": "PutObjectTagging",
    "put_record": "PutRecord",
    "put_record_batch": "PutRecordBatch",
    "put_records": "PutRecords",
    "send_message": "SendMessage",
    "send_message_batch": "SendMessageBatch",
    "upload_file": "PutObject",
    "upload_fileobj": "PutObject",
    "upload_part": "UploadPart",
    "upload_part_copy": "UploadPartCopy",
}
"""Methods of boto3 that commit, called or named -> what boto3 calls them below."""
_METHODS = {
    "convertToDelta", "createIfNotExists", "createOrReplace", "createTable",
    "insertInto", "mergeInto", "save", "saveAsTable", "sql", "toTable", "writeTo",
    "executeCompaction", "executeZOrderBy", "restoreToTimestamp", "restoreToVersion",
    "cleanup_metadata", "create_checkpoint", "create_write_transaction",
    "copy2", "copyfile", "copyfileobj", "copytree", "ftruncate", "hardlink_to", "pwrite", "rename", "rmtree", "rmdir",
    "symlink_to", "touch", "truncate",
    "create_topics", "produce", "unlink", "writeStream", "write_bytes", "write_text", *OUTSIDE,
    "copy_file", "delete_dir", "delete_dir_contents", "delete_file", "delete_root_dir_contents",
    "open_append_stream", "open_output_stream", "write_dataset", "write_table", "write_to_dataset",
}  # fmt: skip
"""Methods, of whatever object, that commit: Spark's, those that only delta-rs, Kafka's client or boto3 has, those of
paths, of `os` and `shutil`, and of Arrow's file systems and writers."""
_OF_MODULES = {
    "os.link", "os.remove", "os.replace", "os.symlink", "shutil.copy", "shutil.move", "duckdb.connect",
    "sqlite3.connect", "Path.replace",
}  # fmt: skip
"""Functions that commit, whose names mean something else of other things."""
_BARE = {
    "copyfile", "copyfileobj", "copytree", "ftruncate", "rename", "rmdir", "rmtree", "truncate", "unlink",
    "write_dataset", "write_table", "write_to_dataset",
}  # fmt: skip
"""Of these, functions that a module may import by their names."""
_WRITERS = {"csv", "jdbc", "json", "orc", "parquet", "text", "xml"}
"""Methods of Spark's `DataFrameWriter` that write files or a database; its reader has the same."""
_OPENERS = {"open": 1, "fdopen": 1}
"""Functions that open a file by a mode -> which argument it is; of a path's method the one before."""
_OTHERWISE: Mapping[str, Callable[[ast.Call], bool]] = {
    # An SQLAlchemy engine's or connection's; stores and cursors are told what begins.
    "begin": lambda call: not call.args and not call.keywords,
    # A path's; that of a text has two arguments, those of times and records have names.
    "replace": lambda call: not call.keywords and len(call.args) == 1,
    # That of an Arrow file system; a cursor that moves is told more.
    "move": lambda call: not call.keywords and len(call.args) == 2,
    # A connection's or a session's; what is committed to a table has arguments.
    "commit": lambda call: not call.args and not call.keywords,
    # Spark's MERGE ends with a call without arguments, which no other `merge` has.
    "merge": lambda call: not call.args and not call.keywords,
}
"""Methods that commit only if they are called like this."""
_OF_A_TABLE = {"alter", "create", "delete", "merge", "optimize", "repair", "restore", "update", "vacuum"}
"""Names that mean one of a `DeltaTable`, and something else of other things."""
_OF_A_PART = {("optimize", "compact"), ("optimize", "z_order")}
_READS = ("SHOW", "DESCRIBE")
_TO_WRITE = re.compile(r"[wax][bt]?\+?[bt]?|r[bt]?\+[bt]?")


@cache
def sites() -> Mapping[str, int]:
    """The functions of the product that commit, found by what they call -> in how many places."""
    return {f"{_named(path)}.{name}": count for path in modules() for name, count in committing(tree(path)).items()}


def functions() -> set[str]:
    """Every function of the product."""
    return {f"{_named(path)}.{name}" for path in modules() for name, *_ in _functions(tree(path))}


def _named(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


def committing(module: ast.Module) -> Counter[str]:
    """The functions of a module that commit, those of a class as `Class.function` -> in how many places."""
    found = Counter[str]()
    for name, function, kept in _functions(module):
        here = set(filter(_commits(function, kept), ast.walk(function)))
        # `merge` at the end of what begins with `mergeInto` is the same place.
        found[name] += len(here - {part for node in here for part in _begins_with(node)})
    return +found


def _begins_with(node: ast.AST) -> Iterator[ast.AST]:
    """What a chain of calls and attributes is made of, without its end."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
        yield node


def _functions(
    node: ast.AST, within: str = "", kept: frozenset[str] = frozenset()
) -> Iterator[tuple[str, ast.AST, frozenset[str]]]:
    """Every function, with what is inside of it, and the tables that its class keeps in attributes; what a module does
    outside of them is `<module>`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{within}{child.name}", child, kept
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.", _attributes(child))
        elif isinstance(child, ast.stmt):
            yield f"{within}<module>", child, kept


def _attributes(of: ast.ClassDef) -> frozenset[str]:
    """The attributes in which a class keeps a `DeltaTable`, by its methods and its own annotations."""
    names = {name for statement in of.body for name in _tables(statement)}
    declared = {each.target for each in of.body if isinstance(each, ast.AnnAssign)}
    own = {f"self.{target.id}" for target in declared if isinstance(target, ast.Name) and target.id in names}
    return frozenset(own | {name for name in names if name.startswith("self.")})


def _commits(function: ast.AST, kept: frozenset[str]) -> Callable[[ast.AST], bool]:
    """Whether something in a function commits. kept: tables that it has without saying so."""
    tables = _tables(function) | kept
    own = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    reading = {node.func for node in ast.walk(function) if isinstance(node, ast.Call) and _reads(node)}

    def commits(node: ast.AST) -> bool:
        # What is named without a call is handed on, or called by another name.
        match node:
            case ast.Call():
                return _is_called_to_commit(node)
            case ast.Name(name, ast.Load()):
                return name in (_CALLED | _BARE) - own
            case ast.Attribute(of, name, ast.Load()) if node not in reading:
                return (
                    name in _CALLED | _METHODS
                    or ast.unparse(node) in _OF_MODULES
                    or (name in _WRITERS and ".write" in ast.unparse(of))
                    or _is_of_a_table(of, name, tables)
                )
        return False

    return commits


def _is_called_to_commit(call: ast.Call) -> bool:
    """Whether it is its arguments by which a call commits."""
    match call:
        case ast.Call(args=[ast.Constant(name), *_]) if name in OUTSIDE:
            return True
        case ast.Call(func=ast.Name(name)) if name in _OPENERS:
            return _opened_to_write(call, _OPENERS[name])
        case ast.Call(func=ast.Attribute(attr=name)) if name in _OPENERS:
            return any(_opened_to_write(call, place) for place in (0, _OPENERS[name]))
        case ast.Call(func=ast.Attribute(attr=name)) if name in _OTHERWISE:
            return _OTHERWISE[name](call)
    return False


def _opened_to_write(call: ast.Call, place: int) -> bool:
    """Whether a file is opened so that it changes: by the mode that is said, or by the flags of `os.open`."""
    given = [*call.args[place : place + 1], *(each.value for each in call.keywords if each.arg == "mode")]
    return any(
        isinstance(each, ast.Constant) and isinstance(each.value, str) and bool(_TO_WRITE.fullmatch(each.value))
        for each in given
    ) or any(flag in ast.unparse(each) for each in call.args for flag in ("O_WRONLY", "O_RDWR", "O_CREAT"))


def _reads(call: ast.Call) -> bool:
    """Whether it is a statement, or a trial, that changes nothing."""
    said = [ast.unparse(each).lstrip("f'\"").upper() for each in call.args]
    return any(each.startswith(_READS) for each in said) or "dry_run=True" in map(ast.unparse, call.keywords)


def _is_of_a_table(of: ast.expr, name: str, tables: Collection[str]) -> bool:
    part = of.attr if isinstance(of, ast.Attribute) else ""
    if (part, name) in _OF_A_PART:
        return True
    # `table.alter.add_columns()` is of the table, too.
    return not _OF_A_TABLE.isdisjoint({name, part}) and _is_table(of, tables)


def _tables(function: ast.AST) -> set[str]:
    """The names by which a function has a `DeltaTable`, among its arguments and what it assigns."""
    found = set[str]()
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as what) if "DeltaTable" in ast.unparse(what):
                found.add(name)
            case ast.Assign(targets=targets, value=value) if _is_table(value, found):
                found |= {ast.unparse(each) for target in targets for each in getattr(target, "elts", [target])}
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value) if _is_table(
                value, found
            ):
                found.add(ast.unparse(target))
            case ast.AnnAssign(target=target, annotation=what) if "DeltaTable" in ast.unparse(what):
                found.add(ast.unparse(target))
            case ast.NamedExpr(target=target, value=value) if _is_table(value, found):
                found.add(ast.unparse(target))
    return found


@cache
def _opens() -> re.Pattern[str]:
    """What opens a table: its class, and what the product says returns one."""
    return re.compile(
        "DeltaTable|"
        + "|".join(
            rf"\b{node.name}\("
            for path in modules()
            for node in ast.walk(tree(path))
            if isinstance(node, ast.FunctionDef) and node.returns and "DeltaTable" in ast.unparse(node.returns)
        )
    )


def _is_table(value: ast.AST, tables: Collection[str]) -> bool:
    said = ast.unparse(value)
    return bool(_opens().search(said)) or any(f"{said}.".startswith((f"{each}.", f"{each}[")) for each in tables)
