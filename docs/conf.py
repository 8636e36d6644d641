"""Sphinx: Markdown pages through MyST, furo as the theme. Built with warnings as errors by `make docs`, offline."""

from importlib.metadata import version as installed

project = "statefx"
author = "The statefx developers"
copyright = "The statefx developers"
release = version = installed("statefx")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3  # so that pages can link to each other's headings, which is checked

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name the types, with their shapes and units
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Contract"]

nitpicky = True
# Types of Python, PySpark and Arrow have no page here, and none is fetched from the net; our own must resolve.
nitpick_ignore_regex = [("py:.*", r"(?!statefx\.).*")]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "statefx"
html_static_path = ["_static"]
html_css_files = ["tables.css"]


def setup(app):
    app.connect("autodoc-process-docstring", plain_property, priority=600)


def plain_property(app, what, name, thing, options, lines):
    """Undo what napoleon makes of a property's "one thing: another": a type and a description."""
    if what == "property" and lines and lines[-1].startswith(":type: "):
        lines[:] = [f"{lines[-1].removeprefix(':type: ')}: {' '.join(lines[:-1]).strip()}"]
