"""Accounts as text that one would paste into a bug report: no colours, no columns that depend on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

LONG = 200  # characters of one value that are shown
WIDTH = 100


def account_text(found: dict[str, Any], limit: int) -> str:
    """What `coldstart explain` prints."""
    return "\n".join(_account(found, limit))


def rules_text(listed: list[dict[str, Any]]) -> str:
    """What `coldstart explain --rules` prints."""
    lines = []
    for rule in listed:
        changes = "changes the module that is compiled" if rule["changes_module"] else "hash only"
        lines.append(f"{rule['name']}  version {rule['version']}, {rule['kind']}, {changes}")
        lines += _wrapped("reason  ", rule["reason"])
        lines += _wrapped("proof   ", rule["proof"])
        lines.append("")
    lines.append("Off for one process: COLDSTART_RULES=-name[,-name]")
    return "\n".join(lines)


def _account(found: dict[str, Any], limit: int) -> Iterator[str]:
    left, right, difference = found["left"], found["right"], found["difference"]
    if right is not None:
        yield _verdict(found)
        yield ""
        yield from _components(found["components"])
    if difference is not None:
        whose = "the raw programs" if right is not None else "two raw programs of this key"
        yield from _difference(difference, whose)
        yield ""
    for note in found["notes"]:
        yield from _wrapped("note: ", note, indent="")
        yield ""
    yield from _side(left, limit)
    if right is not None and right != left:
        yield ""
        yield from _side(right, limit)


def _verdict(found: dict[str, Any]) -> str:
    left, right = found["left"]["name"], found["right"]["name"]
    thing = "key" if found["left"]["record"] is not None else "program"
    if found["same"]:
        return f"{left} and {right}: the same {thing}"
    first = f"; first in {found['first']}" if found["first"] else ""
    return f"{left} and {right}: not the same {thing}{first}"


def _components(components: list[dict[str, Any]]) -> Iterator[str]:
    for component in components:
        yield f"component {component['name']} differs"
        parts = component["parts"]
        for part in parts:
            yield f"  {part['path']}: {_short(part['left'])} | {_short(part['right'])}"
        if not parts:
            for side in ("left", "right"):
                detail = component[f"{side}_detail"]
                yield f"  {_short(component[side])}{f'  ({detail})' if detail else ''}"
        yield ""


def _difference(difference: dict[str, Any], whose: str) -> Iterator[str]:
    count, stripped = difference["count"], difference["stripped"]
    if not count:
        yield f"{whose}: no node or attribute differs"
        return
    many = "" if difference["all"] else "at least "
    yield f"{whose} differ in {many}{_counted(count, 'fact')}; rules strip {stripped} of them"
    for at, group in _grouped(difference["shown"], "function", "op", "rule", "why"):
        function, op, rule, why = at
        first = group[0]
        called = f" {first['kernel']}" if first["kernel"] else ""
        place = f"@{function}" if function else "beside the functions,"
        yield f"  {place}{f' op {op}' if op >= 0 else ''} {first['name']}{called}"
        for d in group:
            yield f"    {d['what']}"
            left, right = _near_the_difference(d["left"], d["right"])
            yield f"      left   {left}"
            yield f"      right  {right}"
        head = f"stripped by {rule}: " if rule else "stays: "
        yield from _wrapped(head if why else head.rstrip(": "), why, indent="    ")
    if count > len(difference["shown"]):
        yield f"  and {count - len(difference['shown'])} more"


def _side(side: dict[str, Any], limit: int) -> Iterator[str]:
    yield side["name"]
    record = side["record"]
    if record is not None:
        yield f"  name       {record['program_name'] or 'none'}"
        for component in record["components"]:
            detail = f"  ({component['detail']})" if component["detail"] else ""
            yield f"  {component['name']:<9}  {_short(component['value']) or 'none'}{detail}"
        yield f"  versions   {', '.join(f'{k} {v}' for k, v in record['versions'].items())}"
        yield from _notes(record["notes"])
    elif side["program"]:
        yield f"  program digest  {side['program']}"
    elif not side["programs"]:
        yield "  nothing is known of this key: no artifact is here, and nobody asked for it since the daemon started"
    yield from _notes(side["notes"])
    if side["remembered"] > len(side["programs"]):
        yield f"  {side['remembered']} raw programs came to it, shown are {len(side['programs'])}"
    elif record is not None and not side["programs"]:
        yield "  no raw program of it is remembered (a running daemon does so, of those described to it)"
    for program in side["programs"][:limit]:
        yield from _program(program, limit)


def _program(program: dict[str, Any], limit: int) -> Iterator[str]:
    name = f"raw {program['raw_digest'][:12]}" if program["raw_digest"] else "module"
    if program["abandoned"]:
        yield f"  {name}: not canonicalized: {program['abandoned']}"
    if not program["described"]:
        if not program["abandoned"]:
            yield f"  {name}: its descriptor is not kept any more"
        return
    stripped = program["stripped"]
    size = f"{_counted(program['nodes'], 'op')} in {_counted(program['functions'], 'function')}"
    yield f"  {name}: {size}, {_counted(len(stripped), 'fact')} stripped"
    for at, edits in _grouped(stripped[:limit], "function", "op", "rule"):
        function, op, rule = at
        yield f"    @{function} op {op} {edits[0]['name']}, by {rule}"
        for edit in edits:
            yield f"      {edit['attribute']}: {_short(edit['before'])} -> {_short(edit['after'])}"
        for use in edits[0]["uses"][:limit]:
            called = f" {use['kernel']}" if use["kernel"] else ""
            yield from _wrapped(f"used by op {use['op']}{called}: ", use["why"], indent="      ")
    if len(stripped) > limit:
        yield f"    and {len(stripped) - limit} more"
    for rule, reason in {edit["rule"]: edit["rule_reason"] for edit in stripped}.items():
        yield from _wrapped(f"{rule}: ", reason, indent="    ")
    yield from _kernels(program["kernels"], limit)


def _kernels(kernels: list[dict[str, Any]], limit: int) -> Iterator[str]:
    """Read sets; the layers of a model share one, so equal ones are shown once."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for kernel in kernels:
        alike.setdefault(f"{kernel['kernel']} {kernel['operands']}", []).append(kernel)
    for group in list(alike.values())[:limit]:
        first = group[0]
        more = f" and {len(group) - 1} more like it" if len(group) > 1 else ""
        place = f"@{first['function']} " if first["function"] else "beside the functions, "
        yield f"    kernel {first['kernel'] or first['name']} ({place}op {first['op']}{more})"
        for index, operand in enumerate(first["operands"]):
            yield from _wrapped(
                f"operand {index} {operand['state']:<8}", operand["why"], indent="      "
            )
    if len(alike) > limit:
        yield f"    and {len(alike) - limit} more kernels"


def _notes(notes: list[str]) -> Iterator[str]:
    head = "left out: "
    left_out = [note.removeprefix(head) for note in notes if note.startswith(head)]
    if left_out:
        yield from _wrapped("left out of the hash: ", ", ".join(left_out))
    for note in dict.fromkeys(notes):  # one reason may stand for several attributes of an op
        if not note.startswith(head):
            yield from _wrapped("note: ", note)


def _grouped(
    items: list[dict[str, Any]], *names: str
) -> Iterator[tuple[tuple[Any, ...], list[dict[str, Any]]]]:
    for at, group in groupby(items, key=lambda item: tuple(item[name] for name in names)):
        yield at, list(group)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _short(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}... ({len(text)} characters)"


def _near_the_difference(left: str, right: str) -> tuple[str, str]:
    """Two values, shortened so that where they begin to differ is seen."""
    pairs = enumerate(zip(left, right, strict=False))
    first = next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))
    begin = max(0, first - LONG // 4)
    if max(len(left), len(right)) <= LONG or not begin:
        return _short(left), _short(right)
    return f"... {_short(left[begin:])}", f"... {_short(right[begin:])}"


def _wrapped(head: str, text: str, indent: str = "  ") -> list[str]:
    if not text:
        return [f"{indent}{head}".rstrip()]
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=f"{indent}{head}",
        subsequent_indent=f"{indent}{' ' * min(len(head), 10)}",
        break_long_words=False,
        break_on_hyphens=False,
    )
