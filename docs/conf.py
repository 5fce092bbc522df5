"""The site: ``make docs`` builds it from the pages of this repository, with warnings as errors.

The whole repository is the source folder, so that a link from one page to another is the same
path on the site, in an editor and where the repository is browsed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import lockstep
from scripts import api_links, api_pages, markdown_pages

project = "lockstep"
author = copyright = "the lockstep contributors"
version = release = lockstep.__version__

root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "docs/reference/api/*.rst",
    "benchmarks/README.md",
    "benchmarks/results/*.md",
    "examples/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = [".*", "src", "tests", "build", "dist"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the anchors that GitHub makes, so that links work in both places

html_theme = "furo"
html_title = f"lockstep {release}"
html_static_path = ["_static"]
html_css_files = ["lockstep.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False
html_copy_source = False
# Decisions are listed on their own page; tests/test_docs.py checks the others.
suppress_warnings = ["toc.not_included"]
copybutton_prompt_text = "$ "

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # the signature has them
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def setup(app: Any) -> None:
    """Write the pages of the API before a build, and the pages as Markdown after it."""
    app.connect("builder-inited", lambda app: api_pages.write(ROOT / "docs/reference/api"))
    app.connect("autodoc-process-docstring", _join_names, priority=100)
    app.connect("doctree-resolved", api_links.add)
    app.connect("build-finished", markdown_pages.write)


def _join_names(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Put names of arguments that share a text on one line: Napoleon reads them only there."""
    text = "\n".join(lines)
    one = re.compile(r"^(    (?:[*\w]+, )*[*\w]+,)\n {4,}(?=\w+[,:])", re.MULTILINE)
    while (joined := one.sub(r"\1 ", text)) != text:
        text = joined
    lines[:] = text.split("\n")
