"""Sphinx: pages in Markdown (MyST), the API from docstrings (numpydoc style).

How to build is in docs/these-pages.md.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import TYPE_CHECKING, Any

import cakert.errors  # noqa: F401  the package must be there: autodoc would only warn

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "cakert"
copyright = "the authors of cakert, Apache-2.0"  # noqa: A001  Sphinx's name for it
version = release = metadata.version("cakert")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# The highlighter does not know all of PTX.
suppress_warnings = ["misc.highlighting_failure"]

# Pages are read on code hosts, too, so they are plain Markdown: links are relative, and the
# headings that they lead to have the anchors that code hosts give them.
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"cakert {release}"
# The system's fonts and nothing from other sites: the pages can be read offline.
html_show_sphinx = False

default_role = "py:obj"  # `Kernel` in a docstring: a link where it is one, code anyway
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Keys", "params_style")]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it, with shapes and units


def lead_to_the_index(app: Sphinx, docname: str, source: list[str]) -> None:
    """Here the README is the index. MyST copies other files that a page links to."""
    source[0] = re.sub(r"\]\(\.\./README\.md(#[\w-]*)?\)", "](index.md)", source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", lead_to_the_index)
    return {"parallel_read_safe": True}
