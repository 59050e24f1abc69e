"""The texts of all errors that a user can cause, read from the sources; rewrite the list of them with
`python -m tests.helpers.messages`.

A line is the class and the text; what a program fills in stands in braces, as it does in the source.
"""

import ast

from tests.helpers.sources import ROOT, nodes_of_program

LIST = ROOT / "tests" / "messages.txt"


def messages() -> list[str]:
    """`DatasetError: {path}: expected …`, sorted; calls whose text is a variable are left out."""
    classes = _classes()
    calls = (node for node in nodes_of_program() if isinstance(node, ast.Call))
    named = [(call, getattr(call.func, "id", None)) for call in calls]
    found = {f"{name}: {text}" for call, name in named if name in classes if (text := _text(call))}
    found |= {_failing(call) for call, name in named if name == "failing"}
    longer = (call for call, name in named if name == "extended_error" and call.keywords)
    return sorted(
        found | {_extended({f"{e.arg}": _filled(e.value) for e in call.keywords}) for call in longer}
    )


def without_fields() -> list[str]:
    """Texts of the form `where: expected E, got G` that are one literal: their errors have no fields."""
    classes = _classes()
    calls = (node for node in nodes_of_program() if isinstance(node, ast.Call))
    lone = (
        c for c in calls if getattr(c.func, "id", None) in classes and len(c.args) == 1 and not c.keywords
    )
    texts = (_filled(call.args[0]) for call in lone if len(call.args) == 1)
    return [text for text in texts if ": expected " in text and ", got " in text]


def _failing(call: ast.Call) -> str:
    """The line of `with failing(kind, where, fault, if_full, remedy=…)`, which adds what the system says."""
    kind, where, fault, *remedy = map(_filled, (*call.args, *(each.value for each in call.keywords)))
    return "; ".join([f"{kind.strip('{}')}: {where}: {fault}: {{error.strerror or error}}", *remedy])


def _extended(fields: dict[str, str]) -> str:
    """The line of `extended_error(error, where=…, remedy=…)`."""
    line = f"{fields.get('kind', '{type(error)}').strip('{}')}: {fields.get('where', '')}"
    line += f"{': ' * ('where' in fields)}{{error}}"
    return "; ".join([line, *([fields["remedy"]] if "remedy" in fields else [])])


def _classes() -> set[str]:
    """SegmenterError and its descendants."""
    nodes = (node for node in nodes_of_program() if isinstance(node, ast.ClassDef))
    bases = {node.name: {ast.unparse(base) for base in node.bases} for node in nodes}
    found = {"SegmenterError"}
    while new := {name for name, above in bases.items() if above & found} - found:
        found |= new
    return found


def _text(call: ast.Call) -> str:
    """The text as `SegmenterError` makes it of its fields; empty where a variable holds all of it."""
    texts = (ast.Constant, ast.JoinedStr, ast.BinOp)
    alone = not call.keywords and len(call.args) == 1 and not isinstance(call.args[0], texts)
    if alone or any(each.arg is None for each in call.keywords):
        return ""
    fields = {str(each.arg): _filled(each.value) for each in call.keywords}
    wrong = [f"expected {fields['expected']}"] if "expected" in fields else []
    text = ": ".join([*map(_filled, call.args), *wrong])
    text += f", got {fields['got']}" if "got" in fields else ""
    text += f"; {fields['remedy']}" if "remedy" in fields else ""
    return text


def _filled(node: ast.expr) -> str:
    """A literal's text, with its expressions in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_filled, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _filled(node.left) + _filled(node.right)
    if isinstance(node, ast.FormattedValue):
        conversion = f"!{chr(node.conversion)}" if node.conversion > 0 else ""
        form = f":{_filled(node.format_spec)}" if node.format_spec else ""
        return f"{{{ast.unparse(node.value)}{conversion}{form}}}"
    return f"{{{ast.unparse(node)}}}"


if __name__ == "__main__":
    LIST.write_text("".join(f"{line}\n" for line in messages()), encoding="utf-8")
