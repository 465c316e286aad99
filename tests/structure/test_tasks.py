"""No task's exception is lost: who creates one awaits it, or leaves that to ``core.tasks.start_task``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.structure.sources import ROOT, Source, functions, package_sources

CREATORS = {"create_task", "ensure_future"}


def is_creation(node: ast.AST) -> bool:
    """A call of ``asyncio.create_task`` or alike; a task group awaits its own tasks."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CREATORS):
        return False
    return not ast.unparse(node.func.value).endswith("group")


def unread_tasks(source: Source) -> Iterator[str]:
    """Places where a task is created that is not awaited in the same function, and whose end is not watched."""
    for function in functions(source.tree):
        if not any(map(is_creation, ast.walk(function))):
            continue
        awaited = {
            ast.unparse(name)
            for node in ast.walk(function)
            if isinstance(node, ast.Await)
            or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".add_done_callback", ".done")))
            for name in ast.walk(node)
            if isinstance(name, ast.Name | ast.Attribute)
        }
        within = {id(each) for node in ast.walk(function) if isinstance(node, ast.Await) for each in ast.walk(node)}
        for statement in ast.walk(function):
            if not isinstance(statement, ast.stmt) or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            found = [each for each in ast.iter_child_nodes(statement) for each in ast.walk(each) if is_creation(each)]
            if not found or any(isinstance(each, ast.stmt) for each in ast.iter_child_nodes(statement)):
                continue
            targets = {ast.unparse(each) for each in getattr(statement, "targets", ())}
            if all(id(each) in within for each in found) or targets & awaited:
                continue
            yield f"{source.name}:{statement.lineno}"


def test_the_exception_of_every_task_is_read() -> None:
    known = {"twofold/core/tasks.py"}
    lost = [place for source in package_sources() if source.name not in known for place in unread_tasks(source)]
    assert lost == [], "use core.tasks.start_task, which logs the exception"


def test_tasks_that_nobody_reads_are_seen() -> None:
    code = """
async def f(self):
    self.task = asyncio.create_task(a())
    asyncio.create_task(b())
    c = asyncio.create_task(c())
    await c
    await asyncio.shield(asyncio.ensure_future(d()))
    if self.e:
        self.e = asyncio.create_task(e())
"""
    source = Source(ROOT / "twofold/core/made_up.py", "core", ast.parse(code))
    assert [place.rpartition(":")[2] for place in unread_tasks(source)] == ["3", "4", "9"]
