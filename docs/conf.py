"""Sphinx: Markdown pages through MyST, furo as the theme. Built with warnings as errors by `make docs`."""

from importlib.metadata import version as installed

project = "statefx"
author = "The statefx developers"
copyright = "The statefx developers"
release = version = installed("statefx")

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3  # so that pages can link to each other's headings, which is checked

nitpicky = True
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "statefx"
