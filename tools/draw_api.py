"""Write docs/api.md: each public name of minise with its signature and docstring.

python -m tools.draw_api

Needs the extra `docs`. On the site mkdocstrings draws the same names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from griffe2md import ConfigDict, render_object_docs

import minise
from minise.lab.files import write_file

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
# In the order of reading. A name that is in none of them comes at the end.
PARTS = {
    "Ask a question": (
        "load Question self_ensemble standard ask Answer Group Generation generate InputError"
    ),
    "Models": "LanguageModel Prompts LabelLogits LocalModel branch_logits Tokenizer",
    "Layouts": "pack Layout",
    "Methods": (
        "Method Groups random_partitions SelfEnsemble Standard Template write_prompts combine "
        "Fitted remade"
    ),
    "A decoder of your own": "Config RopeScaling read_config Decoder Block MLP RMSNorm cos_sin",
    "Look inside": "explain Page record check guard packed_loss",
}
HEAD = """# The public names

`import minise` has these names, and `from minise import NAME` works for each. Whatever is not here
may change at any time. `python -m tools.draw_api` writes this page from the code; a test holds that
it is not older.
"""
LOOK = ConfigDict(
    docstring_style=None,  # prose, with examples
    heading_level=3,
    line_length=100,
    members_order="source",
    merge_init_into_class=True,
    show_bases=False,  # griffe2md links them to nothing
    show_if_no_docstring=False,
    show_object_full_path=False,
    show_root_full_path=False,
    show_root_members_full_path=False,
    show_signature_annotations=True,
    summary=False,
)


class Examples(griffe.Extension):  # type: ignore[misc]
    """The examples in docstrings become code, also where they stand under no heading. And the
    public names, which `import minise` looks up when they are used, are found."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.path == "minise":
            for name, module in minise._HOMES.items():
                pkg.set_member(name, griffe.Alias(name, f"{module}.{name}"))

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = r"```python\n\g<0>\n```"
            found = obj.docstring.value
            obj.docstring.value = re.sub(r"^>>> .*(?:\n.+)*", text, found, flags=re.MULTILINE)


def page() -> str:
    extensions = griffe.load_extensions(Examples())
    package = griffe.load("minise", search_paths=[ROOT], extensions=extensions)
    listed = " ".join(PARTS.values()).split()
    more = " ".join(name for name in minise.__all__ if name not in listed)
    text = HEAD
    for title, names in [*PARTS.items(), ("More", more)]:
        text += f"\n## {title}\n\n"
        for name in names.split():
            entry = package[name].target
            if "__init__" in entry.all_members:
                entry.all_members["__init__"].returns = None  # else each class ends in -> None
            text += render_object_docs(entry, LOOK) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


if __name__ == "__main__":
    write_file(PAGE, page())
