"""Griffe extension: what PyMC's docstrings have and Markdown has not.

Formulas after ``.. math::`` and in ``:math:`` become MathML, which browsers draw without a script. Footnotes become
plain numbers, and lists of terms plain lists. Distributions, whose constructors pass on what ``dist`` takes, show the
name and that. A function whose module is called after it is found under the name that users import.
"""

import re
from textwrap import dedent
from typing import Any

import griffe
from latex2mathml.converter import convert

_DISPLAY = re.compile(r"^( *)\.\. math:: *(.+(?:\n\1 +.+)*)", re.MULTILINE)
_INLINE = re.compile(r":math:`([^`]+)`")
_TERM = re.compile(r"^( +)(``[^`\n]+``(?:, ``[^`\n]+``)*(?: \([^`\n]*\))?)$(\n\1 +)?", re.MULTILINE)
_REFERENCE = re.compile(r"^\.\. \[(\d+)\] +(.+(?:\n +.+)*)", re.MULTILINE)


def _mathml(formula: str, display: str) -> str:
    """A formula on one line, so that Markdown leaves it alone."""
    return re.sub(r"\s*\n\s*", " ", convert(" ".join(formula.split()), display=display))


def markdown(docstring: str) -> str:
    """Return a docstring with its reStructuredText put into Markdown."""
    text = _DISPLAY.sub(lambda found: f"{found[1]}<div class='formula'>{_mathml(found[2], 'block')}</div>", docstring)
    text = _INLINE.sub(lambda found: _mathml(found[1], "inline"), text)
    text = _TERM.sub(lambda found: f"{found[1]}- {found[2]}{': ' if found[3] else ''}", text)
    text = _REFERENCE.sub(lambda found: f"{found[1]}. {' '.join(found[2].split())}", text)
    return re.sub(r"(\[\d+\])_", r"\1", text)


def _show_what_is_imported(modules: list[griffe.Module]) -> None:
    """Let ``pymc_ep.fit`` be the function, as it is at run time, and not the module. Find all names, then set them."""
    found = {
        (module, name): module.modules_collection[path]
        for module in modules
        for name, path in module.imports.items()
        if path.startswith(f"{module.package.name}.") and name in (module.exports or ())
    }
    targets = {place: item.final_target if item.is_alias else item for place, item in found.items()}
    for (module, name), item in targets.items():
        module.members[name] = item


class Docstrings(griffe.Extension):
    """Griffe calls it for what it has read."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Resolve the names that the package and its rooms offer."""
        _show_what_is_imported([module for module in pkg.modules.values() if module.is_init_module])
        _show_what_is_imported([pkg])

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put the docstring into Markdown."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(dedent(obj.docstring.value))

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Write defaults that are a module's private constants as their values."""
        for parameter in func.parameters:
            constant = func.module.members.get(str(parameter.default))
            if str(parameter.default).startswith("_") and isinstance(constant, griffe.Attribute):
                parameter.default = constant.value

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Give a distribution the signature that it has in a model block."""
        dist = cls.members.get("dist")
        if isinstance(dist, griffe.Function) and dist.docstring is not None:
            name = griffe.Parameter("name", kind=griffe.ParameterKind.positional_or_keyword, annotation="str")
            own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
            parameters = griffe.Parameters(own, name, *list(dist.parameters)[1:])
            cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))
