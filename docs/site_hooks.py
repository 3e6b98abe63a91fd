"""Builds the site from the files of the repository, whose links also work on GitHub.

Pages outside of `docs/` that a page links to are added under `repository/`. Pictures follow the site's color switch.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
_PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]*)">\s*<img alt="([^"]*)" src="([^"]*)">\s*</picture>'
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what any page links to outside of `docs/`, and so on from there."""
    waiting = [file for file in files if file.is_documentation_page()]
    while waiting:
        page = waiting.pop()
        for link in _LINK.findall(page.content_string):
            source = _outside(_source_of(page), link)
            if source is not None and files.get_file_from_path(_site_path(source)) is None:
                added = _add(files, config, source)
                waiting += [added] if added.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links between files of the repository into links between files of the site."""
    here = _source_of(page.file)

    def moved(found: re.Match[str]) -> str:
        target = _target(here, found[1])
        if not (ROOT / target).exists():
            return found[1]  # which mkdocs will report
        return posixpath.relpath(_site_path(_linked(target)), posixpath.dirname(page.file.src_uri) or ".")

    # A media query knows the system's colors, not the site's switch.
    pictures = _PICTURE.sub(r"![\2](\3#only-light)![\2](\1#only-dark)", markdown)
    return _LINK.sub(moved, pictures)


def _add(files: Files, config: MkDocsConfig, source: str) -> File:
    path, place = ROOT / source, _site_path(source)
    if path.is_dir():
        file = File.generated(config, place, content=_listing(path))
    else:
        file = File.generated(config, place, abs_src_path=str(path))
    files.append(file)
    return file


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    lines = [f"- [{name}]({name})" for name in names]
    return "\n".join([f"# {folder.relative_to(ROOT)}", "", *lines, ""])


def _source_of(file: File) -> str:
    """A page's path in the repository."""
    outside = file.src_uri.removeprefix("repository/")
    return outside if outside != file.src_uri else f"docs/{file.src_uri}"


def _target(here: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), link))


def _linked(target: str) -> str:
    """What a link to a folder shows: its README, or the list of its files."""
    folder = (ROOT / target).is_dir()
    return f"{target}/README.md" if folder and (ROOT / target / "README.md").exists() else target


def _outside(here: str, link: str) -> str | None:
    """The file or folder outside of `docs/` that a link leads to."""
    target = _target(here, link)
    return None if target.startswith(("docs/", "..")) or not (ROOT / target).exists() else _linked(target)


def _site_path(source: str) -> str:
    """The site's path of a file of the repository."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return f"repository/{source}" + ("/index.md" if (ROOT / source).is_dir() else "")
